"""PostgreSQL and Valkey of a run or a command, and backup and restore of the state in one file.

    backup.tar   manifest.json   format, version, checksum of the dump, list of market records
                 settings.toml   effective settings; secrets as three stars
                 database.dump   pg_dump's snapshot, consistent even while QTS trades

The servers are those of the settings, or embedded in the home. Market records are listed, not
copied: they are large and never change once written. A restore turns the kill switch on: the
venue's account may have changed since the backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

import qts
from qts import telemetry
from qts.cache import CacheConfig, CacheStore
from qts.config import Config, LoadedConfig, render
from qts.database import Database, migration_status
from qts.domain import HomeInUseError, OperationError, RefusedError, Secret, UnreachableError
from qts.embedded import EmbeddedServers, Home, default_home
from qts.embedded.binaries import find_binary
from qts.risk import stop_all_accounts

# The client of Redis takes a fifth of a second to import; most commands only open the database.
if TYPE_CHECKING:
    import tarfile

    from redis.asyncio import Redis

    from qts.cache.redis import RedisStore

FIRST_REPLY_TIMEOUT_MS = 10_000
FORMAT = 1  # of a backup
DUMP, MANIFEST, SETTINGS = "database.dump", "manifest.json", "settings.toml"
_CHUNK = 1024 * 1024


class ServerInfo(msgspec.Struct, frozen=True):
    """A server of the run, as shown to the operator."""

    name: str
    version: str
    where: str
    pid: int | None  # None where the settings name the server


def database_url(config: Config, home: Home) -> Secret:
    return config.database.url or home.postgres_url()


def cache_url(config: Config, home: Home) -> Secret:
    return config.cache.url or home.valkey_url()


@contextlib.asynccontextmanager
async def open_database(config: Config) -> AsyncIterator[Database]:
    """Open the database for one command: from the settings, of a running QTS, or embedded."""
    async with contextlib.AsyncExitStack() as stack:
        home = resolve_home(config)
        if config.database.url is None and home.holder() is None:
            await stack.enter_async_context(
                _started(EmbeddedServers(home, config.embedded, valkey=False))
            )
        yield await stack.enter_async_context(
            Database.open(database_url(config, home), config.database)
        )


@contextlib.asynccontextmanager
async def open_status_store(config: Config) -> AsyncIterator[CacheStore]:
    """Open the cache of the live status; an empty one where only the database is named."""
    from qts.cache.store import MemoryStore

    if has_cache(config) or config.database.url is None:
        async with open_store(config) as store:
            yield store
    else:
        yield MemoryStore()


def has_cache(config: Config) -> bool:
    """Return whether the settings name a cache, or a QTS on this home runs one."""
    return config.cache.url is not None or resolve_home(config).holder() is not None


@contextlib.asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[RedisStore]:
    """Open the cache for one command: from the settings, or of a running QTS."""
    from qts.cache.redis import RedisStore

    home = resolve_home(config)
    if config.cache.url is None and home.holder() is None:
        raise UnreachableError(
            f"no cache to read: no QTS runs on home {home.path}, and the settings give no cache.url"
        )
    config_of_command = replace(config.cache, socket_timeout_ms=5000, connect_timeout_ms=5000)
    async with RedisStore.open(cache_url(config, home), config_of_command) as store:
        yield store


def resolve_home(config: Config) -> Home:
    return Home.at(config.home or default_home(os.environ))


def start_servers(
    home: Home, config: Config
) -> contextlib.AbstractAsyncContextManager[EmbeddedServers]:
    """Lock the home and start the embedded servers that the settings do not replace."""
    return _started(
        EmbeddedServers(
            home,
            config.embedded,
            postgres=config.database.url is None,
            valkey=config.cache.url is None,
        )
    )


@contextlib.asynccontextmanager
async def _started(servers: EmbeddedServers) -> AsyncIterator[EmbeddedServers]:
    try:
        await asyncio.to_thread(servers.start)
        yield servers
    finally:
        await asyncio.to_thread(servers.stop)


async def describe_servers(
    servers: EmbeddedServers, database: Database, cache_url: Secret, config: CacheConfig
) -> list[ServerInfo]:
    """Return version and address of both servers, after both have answered."""
    from qts.cache.redis import connect

    pids = {server["name"]: server["pid"] for server in servers.describe()}
    ping = await database.ping()
    cache = await connect(cache_url, _with_longer_timeouts(config))
    try:
        info = await cache.info("server")
        where = _address(cache)
    finally:
        await cache.aclose()
    kind = "valkey" if "valkey_version" in info else "redis"
    version = ping.server_version.split()[0]  # Debian appends its package version
    return [
        ServerInfo("postgres", version, database.where, _pid(pids.get("postgres"))),
        ServerInfo(kind, str(info[f"{kind}_version"]), where, _pid(pids.get("valkey"))),
    ]


def _with_longer_timeouts(config: CacheConfig) -> CacheConfig:
    """Allow the first reply more time than orders allow."""
    return replace(
        config,
        socket_timeout_ms=max(FIRST_REPLY_TIMEOUT_MS, config.socket_timeout_ms),
        connect_timeout_ms=max(FIRST_REPLY_TIMEOUT_MS, config.connect_timeout_ms),
    )


def _address(cache: Redis) -> str:
    where = cache.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host')}:{where.get('port')}")


def _pid(value: object) -> int | None:
    return value if isinstance(value, int) else None


class Record(msgspec.Struct, frozen=True):
    file: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    qts: str
    schema: int
    created_at: datetime
    dump_sha256: str
    records: list[Record]


async def write_backup(found: LoadedConfig, file: Path) -> Manifest:
    """Write the file atomically; QTS may run meanwhile."""
    config, home = found.config, resolve_home(found.config)
    place = _place_for(file)
    async with open_database(config) as database:
        schema = (await migration_status(database)).current
        with tempfile.TemporaryDirectory(dir=place, prefix=".qts-") as folder:
            dump = Path(folder, DUMP)
            await _run_tool("pg_dump", database_url(config, home), "-Fc", "-f", str(dump))
            manifest = Manifest(
                qts=qts.__version__,
                schema=schema,
                created_at=datetime.now(UTC),
                dump_sha256=await asyncio.to_thread(_sha256, dump),
                records=_records(config.feed.record_dir or home.path / "record"),
            )
            texts = {
                MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=2),
                SETTINGS: render(config, found.origins).encode(),
            }
            await asyncio.to_thread(_pack, file, texts, dump)
    return manifest


async def restore_backup(found: LoadedConfig, file: Path) -> Manifest:
    """Restore into an empty database; refuse a database with tables, and a running QTS."""
    config, home = found.config, resolve_home(found.config)
    _refuse_busy(home)
    with tempfile.TemporaryDirectory(prefix="qts-restore-") as folder:
        dump = Path(folder, DUMP)
        manifest = await asyncio.to_thread(_unpack, file, dump)
        async with open_database(config) as database:
            await _refuse_unfit(database, manifest)
            url = database_url(config, home)
            await _run_tool("pg_restore", url, "--exit-on-error", "--single-transaction", str(dump))
        async with open_database(config) as database:
            reason = f"restored from a backup of {manifest.created_at:%F %T} UTC"
            await stop_all_accounts(database, "restore", reason)
    return manifest


def _refuse_busy(home: Home) -> None:
    if (pid := home.holder()) is not None:
        raise HomeInUseError(
            f"home {home.path} is in use by process {pid}; stop it before a restore"
        )


async def _refuse_unfit(database: Database, manifest: Manifest) -> None:
    tables = await database.fetchval(
        "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p')"
        " AND relnamespace = 'public'::regnamespace"
    )
    if tables:
        raise RefusedError(
            f"the database at {database.where} holds {tables} tables; restore into an empty one: "
            "a new QTS_HOME, or a new database"
        )
    latest = (await migration_status(database)).latest
    if manifest.schema > latest:
        raise RefusedError(
            f"the backup has schema {manifest.schema}, this QTS knows schemas up to {latest}; "
            f"install QTS {manifest.qts} or newer"
        )


async def _run_tool(program: str, url: Secret, *options: str) -> None:
    path = find_binary("postgres").path.with_name(program)
    if not path.exists():
        raise OperationError(f"{program} is missing beside {path.parent}/postgres; install it")
    bare, environ = without_password(url)
    process = await asyncio.create_subprocess_exec(
        path,
        "--no-password",
        "--no-owner",
        "--no-privileges",
        f"--dbname={bare}",
        *options,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, stderr = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise OperationError(f"{program} failed: {telemetry.redact_text(lines[0])}")


def without_password(url: Secret) -> tuple[str, Mapping[str, str]]:
    """Return the URL without its password, safe for an argument list, and PGPASSWORD."""
    address, _, query = url.reveal().partition("?")
    options = [each for each in query.split("&") if each]
    passwords = [each.removeprefix("password=") for each in options if _is_password(each)]
    scheme, _, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if colon:
        passwords.append(password)
    kept = "&".join(each for each in options if not _is_password(each))
    bare = f"{scheme}://{user}{at}{place}" + (f"?{kept}" if kept else "")
    return bare, {"PGPASSWORD": unquote(passwords[0])} if passwords else {}


def _is_password(option: str) -> bool:
    return option.startswith("password=")


def _place_for(file: Path) -> Path:
    """Return the directory of a file that does not exist yet."""
    if file.exists():
        raise RefusedError(f"{file} exists; name a new file")
    place = file.absolute().parent
    if not os.access(place, os.W_OK):
        raise RefusedError(f"{file} cannot be written; name a file in a directory that can")
    return place


def _pack(file: Path, texts: Mapping[str, bytes], dump: Path) -> None:
    import tarfile

    draft = dump.with_name("draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, text in texts.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(text), 0o600
                archive.addfile(entry, io.BytesIO(text))
            archive.add(dump, DUMP, filter=_without_owner)
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(draft, file)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise RefusedError(f"{file} exists; name a new file") from None


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


def _unpack(file: Path, dump: Path) -> Manifest:
    import tarfile

    try:
        with tarfile.open(file) as archive:
            manifest = _manifest(archive, file)
            content = archive.extractfile(DUMP)
            if content is None:
                raise KeyError(DUMP)
            with dump.open("wb") as out:
                while chunk := content.read(_CHUNK):
                    out.write(chunk)
    except (OSError, KeyError, tarfile.TarError) as error:
        raise _not_a_backup(file, error) from None
    if _sha256(dump) != manifest.dump_sha256:
        raise RefusedError(f"{file} is damaged: the checksum of its dump does not match")
    return manifest


def _manifest(archive: tarfile.TarFile, file: Path) -> Manifest:
    try:
        content = archive.extractfile(MANIFEST)
        manifest = msgspec.json.decode(content.read() if content else b"", type=Manifest)
    except (KeyError, msgspec.DecodeError) as error:
        raise _not_a_backup(file, error) from None
    if manifest.format != FORMAT:
        raise RefusedError(f"{file} has format {manifest.format}, this QTS reads {FORMAT}")
    return manifest


def _not_a_backup(file: Path, error: Exception) -> RefusedError:
    reason = getattr(error, "strerror", None) or "its content is not what qts ops backup writes"
    return RefusedError(f"{file} is not a backup: {reason}")


def _records(folder: Path) -> list[Record]:
    return [
        Record(str(path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
