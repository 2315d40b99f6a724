"""The files of deploy/ for a pair, on real servers: a synchronous replica, and a NATS cluster."""

from __future__ import annotations

import asyncio
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from nats.errors import Error

from qts.brokers import AccountLease
from qts.database import Database, DatabaseConfig, migrate
from qts.domain import AccountKey, OperationError, RefusedError, SystemClock
from qts.outbox.config import NatsBusConfig
from qts.outbox.nats_connection import close_nats, connect_nats
from tests.operations.pair_servers import DEPLOY, make_secrets, nats_nodes, postgres_pair

KEY = AccountKey.of("kis", "pair")
COMPOSE = [DEPLOY / "compose.yaml", DEPLOY / "compose.pair.yaml"]
TIMEOUT_S = 60.0


def test_the_secrets_are_new_each_time_and_nobody_else_can_read_them(tmp_path: Path) -> None:
    first = make_secrets(tmp_path, "postgres-a", "10.0.0.7")
    (tmp_path / "again").mkdir()
    second = make_secrets(tmp_path / "again", "postgres-a")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in first.iterdir()} == {0o600}
    for name in ("postgres", "replica", "redis", "nats"):
        secret = (first / f"{name}.password").read_text().strip()
        assert re.fullmatch("[0-9a-f]{48}", secret)
        assert secret != (second / f"{name}.password").read_text().strip()
    names = (first / "pair.env").read_text()
    assert re.findall(r"^(\w+)=[0-9a-f]{48}$", names, re.MULTILINE) == [
        "POSTGRES_PASSWORD", "REDIS_PASSWORD", "NATS_PASSWORD",
    ]  # fmt: skip
    for host in ("postgres-a", "10.0.0.7"):
        done = subprocess.run(
            ["openssl", "verify", "-CAfile", "ca.pem", f"{host}.pem"],  # noqa: S607
            cwd=first, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: make-secrets.sh DIRECTORY HOST..."),
        (["."], "usage: make-secrets.sh DIRECTORY HOST..."),
        ([".", "db"], ". exists; name a new directory"),
        (["new", "a b"], "'a b' is not a host name; allowed: letters, digits, dots and hyphens"),
        (["new", "ca"], "'ca' is not a host name"),
    ],
)
def test_secrets_refuse_bad_input(tmp_path: Path, words: list[str], message: str) -> None:
    done = subprocess.run(
        ["sh", str(DEPLOY / "make-secrets.sh"), *words],  # noqa: S607
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_can_be_run(path: Path) -> None:
    done = subprocess.run(["sh", "-n", str(path)], capture_output=True, text=True, check=False)  # noqa: S607
    assert (done.returncode, done.stderr) == (0, "")
    assert path.stat().st_mode & 0o111


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_a_compose_file_names_what_exists_and_has_no_password(path: Path) -> None:
    text = path.read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    for name, service in found["services"].items():
        assert service.get("logging"), name
        assert "healthcheck" in service or name in ("qts", "run-a", "run-b"), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_file(), volume
            elif not source.startswith("$"):
                assert source in found["volumes"], volume
        assert set(service.get("depends_on", ())) <= found["services"].keys(), name
        for key, value in service.get("environment", {}).items():
            passwords = re.findall(r"://\w*:([^@]*)@", value)
            passwords += [value] if "PASSWORD" in key else []
            assert all(each.startswith("${") for each in passwords), key
        assert not re.search(r"--pass[= ](?!\$)", str(service.get("command", ""))), name
    # Nothing is published beyond this machine.
    ports = [port for each in found["services"].values() for port in each.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_nodes_of_compose_are_those_of_the_secrets() -> None:
    found = yaml.safe_load((DEPLOY / "compose.pair.yaml").read_text())
    text = (DEPLOY / "compose.pair.yaml").read_text()
    (hosts,) = re.findall(r"make-secrets\.sh \S+ (.*)", text)
    assert set(hosts.split()) < found["services"].keys()
    example = (DEPLOY / "nats.env.example").read_text()
    names = {line.partition("=")[0] for line in example.splitlines() if "=" in line}
    for number in (1, 2, 3):
        given = found["services"][f"nats-{number}"]["environment"]
        assert given.keys() == names
        assert given["NATS_NAME"] == f'"nats-{number}"'


async def test_three_nodes_form_a_cluster_with_passwords_and_tls(tmp_path: Path) -> None:
    with nats_nodes(tmp_path) as nodes:
        done = nodes.check(0)
        assert done.returncode == 0, done.stderr
        config = NatsBusConfig(url=nodes.url(), ssl_ca=str(nodes.secrets / "ca.pem"), replicas=3)
        client = await _connected(config)
        try:
            stream = await _stream(client)
            await _publish(stream, b"an event")
            info = (await stream.stream_info("pair")).cluster
            assert {info.leader, *(each.name for each in info.replicas)} == {
                "nats-1", "nats-2", "nats-3",
            }  # fmt: skip
        finally:
            await close_nats(client)
        for wrong, message in (
            (
                NatsBusConfig(url=nodes.url("guess"), ssl_ca=config.ssl_ca),
                "refuses the user, password",
            ),
            (NatsBusConfig(url=nodes.url()), "does not answer: .*certificate verify failed"),
            (
                NatsBusConfig(url=nodes.url(), ssl_ca=str(tmp_path / "none")),
                "outbox.nats.ssl_ca is .*none",
            ),
        ):
            with pytest.raises((RefusedError, OperationError), match=message):
                await close_nats(await connect_nats(wrong, "test"))


@pytest.mark.soak  # each election of a leader takes seconds
async def test_one_node_may_die_and_two_may_not(tmp_path: Path) -> None:
    with nats_nodes(tmp_path) as nodes:
        config = NatsBusConfig(url=nodes.url(), ssl_ca=str(nodes.secrets / "ca.pem"), replicas=3)
        client = await _connected(config)
        try:
            stream = await _stream(client)
            await _publish(stream, b"with three")
            nodes.kill(0)
            await _publish(stream, b"with two")
            nodes.kill(1)
            with pytest.raises((Error, TimeoutError)):
                await stream.publish("pair.test", b"with one", timeout=3.0)
            nodes.start(0)
            await _publish(stream, b"with two again")
            found = [(await stream.get_msg("pair", number)).data for number in (1, 2)]
            assert found == [b"with three", b"with two"]
        finally:
            await close_nats(client)


async def _connected(config: NatsBusConfig) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await connect_nats(config, "test")
            except OperationError:
                await asyncio.sleep(0.1)


async def _stream(client: Any) -> Any:
    """Return JetStream with a stream that three nodes store."""
    found = client.jetstream(timeout=5.0)
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await found.add_stream(name="pair", subjects=["pair.*"], num_replicas=3)
            except (Error, TimeoutError):  # the cluster has not chosen a leader yet
                await asyncio.sleep(0.1)
            else:
                return found


async def _publish(stream: Any, text: bytes) -> None:
    """Publish until a majority has stored it."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await stream.publish("pair.test", text)
            except (Error, TimeoutError, OSError):
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.soak  # two servers of PostgreSQL, made, killed and made again
async def test_a_synchronous_replica_loses_no_epoch() -> None:
    with postgres_pair() as pair:
        pair.make_primary("a")
        pair.start("a")
        made = pair.make_replica("b", "a")
        assert made.returncode == 0, made.stderr
        pair.start("b")
        config = DatabaseConfig(connect_timeout_s=5.0, statement_timeout_s=5.0)
        async with Database.open(pair.url, config) as database:
            await migrate(database)
            assert await _epoch(database) == 1
            states = "SELECT application_name, sync_state FROM pg_stat_replication"
            assert pair.sql("a", states) == "qts_b|quorum"

            pair.kill("b")  # nothing is committed that only one server has
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3.0):
                    await _epoch(database)
            assert await database.fetchval("SELECT true")  # reads go on
            pair.start("b")
            before = await _epoch(database)

            pair.kill("a")
            pair.promote("b")
            # No replica is left: until there is one, the operator decides to go on with one.
            pair.sql("b", "ALTER SYSTEM SET synchronous_standby_names = ''")
            pair.sql("b", "SELECT pg_reload_conf()")
            assert await _epoch(database) == before + 1  # the same pool finds the new primary

            refused = pair.make_replica("a", "b")
            assert refused.returncode == 2
            assert "is not empty; move the data of the former server away" in refused.stderr
            pair.data("a").rename(pair.folder / "former")
            made = pair.make_replica("a", "b")
            assert made.returncode == 0, made.stderr
            pair.start("a")
            pair.sql("b", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
            assert await _epoch(database) == before + 2
            assert pair.sql("b", states) == "qts_a|quorum"


async def _epoch(database: Database) -> int:
    """Take and release the lease of an account; return its epoch."""
    lease = AccountLease(database, KEY, "/home", SystemClock(), is_live=False)
    # The server keeps a session whose client is gone while its commit waits for the replica.
    await lease.acquire_when_free()
    try:
        return lease.epoch
    finally:
        await lease.release()
