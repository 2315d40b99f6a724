"""Settings of roles: what is refused, with one clear error, and TLS to another machine."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from qts.app.roles import check_role
from qts.config import Config, load
from qts.domain import OperationError, RefusedError, Secret
from qts.embedded.binaries import find_binary
from qts.outbox import NatsBusConfig
from qts.roles import Role, RoleConnection, check_nats
from tests.embedded.clients import until
from tests.outbox.nats_cluster import _free_ports

SHARED = {
    "QTS_DATABASE__URL": "postgresql://qts@127.0.0.1:5432/qts",
    "QTS_VENUES__UPBIT__ACCESS_KEY": "key",
    "QTS_VENUES__UPBIT__SECRET_KEY": "secret",
    "QTS_FEED__VENUE": "upbit",
}


def config(**other: str) -> Config:
    return load(None, SHARED | other)


def test_a_role_on_the_settings_of_all_roles_is_accepted() -> None:
    roles: tuple[Role, ...] = ("feed", "strategies", "execution")
    for role in roles:
        check_role(config(), role, standby=False)
    check_role(config(), "execution", standby=True)
    check_role(load(None, {}), "all", standby=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"QTS_DATABASE__URL": ""}, "needs database.url"),
        ({"QTS_PIPELINE__JOURNAL": "/tmp/journals"}, "pipeline.journal is /tmp/journals"),
        ({"QTS_VENUES__UPBIT__ACCESS_KEY": ""}, "venues.upbit has no key"),
        ({"QTS_OUTBOX__NATS__URL": "http://127.0.0.1"}, "outbox.nats.url is not valid"),
        ({"QTS_OUTBOX__NATS__URL": "nats://10.1.2.3:4222"}, "10.1.2.3 is another machine"),
        ({"QTS_OUTBOX__NATS__URL": "nats://127.0.0.1,nats://b:1"}, "b is another machine"),
    ],
)
def test_settings_that_roles_cannot_share_are_refused(settings: dict[str, str], words: str) -> None:
    given = {name: text for name, text in (SHARED | settings).items() if text}
    with pytest.raises(RefusedError, match=words):
        check_role(load(None, given), "feed", standby=False)


def test_a_standby_of_feed_or_strategies_is_refused() -> None:
    with pytest.raises(RefusedError, match="expected --role execution"):
        check_role(config(), "feed", standby=True)


def test_nats_is_on_this_machine_by_default() -> None:
    url = check_nats(NatsBusConfig()).url
    assert url is not None
    assert url.reveal() == "nats://127.0.0.1:4222"
    far = NatsBusConfig(url=Secret("tls://user:password@nats.example:4222"))
    assert check_nats(far) is far


def test_the_command_line_refuses_a_role_with_one_line(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    command = [sys.executable, "-m", "qts", "run", "--role", "feed"]
    environ = {**clean, "QTS_HOME": str(tmp_path / "home")}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "--role feed needs database.url" in result.stderr
    assert "Traceback" not in result.stderr


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nats")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "cert.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, plain))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[NatsBusConfig]:
    """A NATS that takes TLS and a password alone."""
    certificate, key = _certificate(tmp_path)
    (port,) = _free_ports(1)
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "authorization": {"user": "qts", "password": "word"},
        "tls": {"cert_file": str(certificate), "key_file": str(key)},
        "jetstream": {"store_dir": str(tmp_path / "store")},
        "log_file": str(tmp_path / "nats.log"),
    }
    (tmp_path / "nats.conf").write_text(json.dumps(settings))
    server = subprocess.Popen([find_binary("nats").path, "-c", tmp_path / "nats.conf"])
    try:
        log = tmp_path / "nats.log"
        assert until(lambda: log.exists() and "Server is ready" in log.read_text())
        url = Secret(f"tls://qts:word@127.0.0.1:{port}")
        yield NatsBusConfig(url=url, ssl_ca=str(certificate))
    finally:
        server.kill()
        server.wait()


async def test_roles_join_over_tls_with_a_password(encrypted: NatsBusConfig) -> None:
    async with RoleConnection.open(encrypted, "feed") as connection:
        assert connection.is_connected
    with pytest.raises(OperationError, match="does not answer"):
        async with RoleConnection.open(replace(encrypted, ssl_ca=None), "feed"):
            pass
    assert encrypted.url is not None
    wrong = Secret(encrypted.url.reveal().replace("word", "words"))
    with pytest.raises(RefusedError, match="refuses the user, password"):
        async with RoleConnection.open(replace(encrypted, url=wrong), "feed"):
            pass


async def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for name, words in (("absent", "No such file"), ("empty", "no certificate in it")):
        given = NatsBusConfig(ssl_ca=str(tmp_path / name))
        with pytest.raises(RefusedError, match=words):
            async with RoleConnection.open(given, "feed"):
                pass
