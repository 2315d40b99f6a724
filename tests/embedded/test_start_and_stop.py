"""Start and stop of the servers, their settings, their files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from qts.domain import HomeInUseError
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.embedded.postgres import recovery_sync
from tests.embedded.clients import (
    alive,
    ask,
    cache,
    listens_on,
    mode,
    pids,
    ping,
    processes_in,
    until,
)


async def test_first_start_makes_a_home_and_both_servers(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "new" / "home")
    with EmbeddedServers(home, EmbeddedConfig()) as servers:
        assert servers.postgres
        assert servers.valkey
        assert (
            await ask(servers.postgres.url, "SELECT current_user || '@' || current_database()")
            == "qts@qts"
        )
        assert ping(servers.valkey.url)
        assert home.postgres_url() == servers.postgres.url
        assert home.valkey_url() == servers.valkey.url


async def test_the_first_commits_create_no_segment(tmp_path: Path) -> None:
    with EmbeddedServers(Home.at(tmp_path / "home"), EmbeddedConfig()) as servers:
        assert servers.postgres
        spare = await ask(
            servers.postgres.url,
            "SELECT count(*) FROM pg_ls_waldir()"
            " WHERE name > pg_walfile_name(pg_current_wal_lsn()) AND name !~ '[^0-9A-F]'",
        )
    assert spare >= 4


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("data_checksums", "on"),
        ("server_encoding", "UTF8"),
        ("timezone", "UTC"),
        ("listen_addresses", ""),
    ],
)
async def test_postgres_runs_with(servers: EmbeddedServers, setting: str, value: str) -> None:
    assert servers.postgres
    assert await ask(servers.postgres.url, f"SELECT current_setting('{setting}')") == value


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("linux", "6.1.0-18-amd64", "syncfs"),
        ("linux", "5.8.0", "syncfs"),
        ("linux", "5.4.0-150-generic", None),  # it does not report errors of a syncfs
        ("darwin", "23.4.0", None),
    ],
)
def test_a_start_after_a_crash_syncs_all_files_in_one_call_where_it_is_safe(
    system: str, release: str, expected: str | None
) -> None:
    assert recovery_sync(system, release).get("recovery_init_sync_method") == expected


async def test_text_sorts_by_code_point_and_upper_knows_unicode(servers: EmbeddedServers) -> None:
    assert servers.postgres
    order = "SELECT string_agg(t, '' ORDER BY t) FROM unnest(ARRAY['b', 'a', 'B', 'ä', 'Z']) t"
    assert await ask(servers.postgres.url, order) == "BZabä"
    assert await ask(servers.postgres.url, "SELECT upper('ä')") == "Ä"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("save", ""),
        ("appendonly", "no"),
        ("maxmemory", str(256 * 1024 * 1024)),
        ("maxmemory-policy", "volatile-ttl"),
        ("protected-mode", "yes"),
    ],
)
def test_valkey_runs_with(servers: EmbeddedServers, setting: str, value: str) -> None:
    assert servers.valkey
    with cache(servers.valkey.url) as client:
        assert client.config_get(setting) == {setting: value}


async def test_rows_survive_a_restart(kept_home: Home) -> None:
    with EmbeddedServers(kept_home, EmbeddedConfig()):
        await ask(
            kept_home.postgres_url(),
            "CREATE TABLE IF NOT EXISTS kept (n int)",
            "INSERT INTO kept VALUES (7)",
        )
    with EmbeddedServers(kept_home, EmbeddedConfig()):
        assert await ask(kept_home.postgres_url(), "SELECT max(n) FROM kept") == 7


def test_stop_leaves_no_process_and_no_socket(kept_home: Home) -> None:
    servers = EmbeddedServers(kept_home, EmbeddedConfig())
    servers.start()
    ran = pids(servers)
    assert len(ran) == 2
    assert set(ran) <= {*processes_in(kept_home.data), *processes_in(kept_home.run)}
    servers.stop()
    assert not any(map(alive, ran))
    assert processes_in(kept_home.data) == processes_in(kept_home.run) == []
    assert list(kept_home.run.iterdir()) == []
    assert kept_home.holder() is None


def test_stop_may_come_twice_and_start_again(kept_home: Home) -> None:
    servers = EmbeddedServers(kept_home, EmbeddedConfig())
    servers.stop()
    servers.start()
    servers.stop()
    servers.stop()
    assert servers.restart_dead() == []
    with servers:
        assert len(pids(servers)) == 2


async def test_second_start_is_refused_and_the_first_is_unharmed(servers: EmbeddedServers) -> None:
    assert servers.postgres
    assert servers.valkey
    before = pids(servers)
    with pytest.raises(HomeInUseError) as refusal:
        EmbeddedServers(servers.home, EmbeddedConfig()).start()
    text = str(refusal.value)
    assert str(servers.home.path) in text
    assert f"process {servers.home.holder()};" in text
    assert "\n" not in text
    assert pids(servers) == before
    assert await ask(servers.postgres.url, "SELECT 1") == 1
    assert ping(servers.valkey.url)


def test_servers_do_not_hold_the_lock(servers: EmbeddedServers) -> None:
    for pid in pids(servers):
        held = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        assert str(servers.home.path / "lock") not in held


def test_servers_listen_on_no_port_unless_asked(servers: EmbeddedServers) -> None:
    assert [listens_on(pid) for pid in pids(servers)] == [set(), set()]
    assert servers.postgres
    assert servers.valkey
    assert servers.postgres.tcp_url is None
    assert servers.valkey.tcp_url is None


def test_each_server_can_run_alone(kept_home: Home) -> None:
    with EmbeddedServers(kept_home, EmbeddedConfig(), postgres=False) as servers:
        assert servers.postgres is None
        assert ping(kept_home.valkey_url())
        assert processes_in(kept_home.data) == []


def test_servers_outlive_the_thread_that_started_them(kept_home: Home) -> None:
    servers = EmbeddedServers(kept_home, EmbeddedConfig())
    thread = threading.Thread(target=servers.start)
    thread.start()
    thread.join()
    try:
        # The kernel sends the death signal before a thread leaves /proc, and Valkey logs a
        # signal before it answers the next client.
        assert until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
        assert ping(kept_home.valkey_url())
        assert servers.valkey
        assert "SIGTERM" not in servers.valkey.log.since_mark()
        assert servers.restart_dead() == []
    finally:
        servers.stop()


def test_servers_do_not_inherit_the_environment(
    kept_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPBIT_SECRET", "canary-5417")
    monkeypatch.setenv("PGPORT", "1")
    with EmbeddedServers(kept_home, EmbeddedConfig()) as servers:
        for pid in pids(servers):
            names = {
                entry.partition(b"=")[0]
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            }
            assert names.isdisjoint({b"UPBIT_SECRET", b"PGPORT", b"HOME"})


def test_everything_in_the_home_is_private(servers: EmbeddedServers) -> None:
    home = servers.home
    assert {mode(path) for path in (home.path, home.data, home.run, home.log)} == {0o700}
    files = [path for path in home.path.iterdir() if path.is_file()] + list(home.log.iterdir())
    assert {path.name for path in files} >= {
        "lock",
        "postgres.password",
        "postgres.log",
        "valkey.log",
    }
    assert {mode(path) for path in files} == {0o600}


def test_describe_reports_what_runs_where(servers: EmbeddedServers) -> None:
    info = {entry["name"]: entry for entry in servers.describe()}
    assert servers.postgres
    assert info["postgres"]["pid"] == servers.postgres.pid
    assert info["postgres"]["where"] == str(servers.home.run / ".s.PGSQL.5432")
    assert info["valkey"]["where"] == str(servers.home.run / "valkey.sock")
    assert all(
        entry["running"] and entry["version"] and entry["tcp"] is None for entry in info.values()
    )


def test_later_starts_are_quick(kept_home: Home) -> None:
    with EmbeddedServers(kept_home, EmbeddedConfig()) as servers:
        spans = [entry["started_ms"] for entry in servers.describe()]
        # Some 40 ms on an idle machine; the limit only tells a start from an initdb or a time-out.
        assert all(isinstance(span, float) and 0 < span < 5000 for span in spans)
