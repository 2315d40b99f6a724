"""One connection for many callers: each gets the reply to its own request."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from qts.cache import CacheConfig
from qts.cache.connection import PENDING_MAX, RedisConnection, SpinPolicy, pack
from qts.cache.redis import RedisStore
from qts.cache.store import StoreBusyError, StoreWrite
from qts.domain import Secret, UnreachableError
from qts.embedded import ValkeyServer
from tests.cache.proxy import Proxy

SEED = 20260131


@pytest.fixture
async def connection(valkey_url: Secret) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=5000))
    yield connection
    await connection.close()


def entry(key: str, ver: int = 1) -> StoreWrite:
    return StoreWrite.of(
        key, ver, 60_000, {"ver": str(ver), "key": key, "pad": "x" * (len(key) * 37 % 500)}
    )


async def test_replies_come_in_the_order_of_the_commands(connection: RedisConnection) -> None:
    found = await connection.call([("ECHO", str(n)) for n in range(500)])
    assert found == [str(n) for n in range(500)]


async def test_concurrent_callers_get_their_own_replies(connection: RedisConnection) -> None:
    found = await asyncio.gather(*(connection.call([("ECHO", str(n))]) for n in range(500)))
    assert found == [[str(n)] for n in range(500)]
    assert connection.pending == 0


async def test_it_runs_on_uvloop_as_the_program_does(valkey_url: Secret) -> None:
    async def talk() -> list[list[str]]:
        connection = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=5000))
        try:
            requests = [connection.call([("ECHO", str(n))]) for n in range(50)]
            return [*await asyncio.gather(*requests)]
        finally:
            await connection.close()

    found = await asyncio.to_thread(lambda: uvloop.run(talk()))
    assert found == [[str(n)] for n in range(50)]


async def test_a_refusal_is_a_reply_like_any_other(connection: RedisConnection) -> None:
    first, second, third = await connection.call([("ECHO", "a"), ("NO SUCH",), ("ECHO", "b")])
    assert (first, third) == ("a", "b")
    assert "unknown command" in str(second)


async def test_too_many_calls_at_once_are_refused_as_busy(connection: RedisConnection) -> None:
    await connection.call([("PING",)])
    requests = [asyncio.create_task(connection.call([("PING",)])) for _ in range(PENDING_MAX + 10)]
    done = await asyncio.gather(*requests, return_exceptions=True)
    assert sum(isinstance(each, StoreBusyError) for each in done) == 10
    assert await connection.call([("PING",)]) == ["PONG"]


async def test_replies_to_cancelled_callers_are_discarded(
    connection: RedisConnection,
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - the same each time
    for _ in range(40):
        requests = [asyncio.create_task(connection.call([("ECHO", str(n))])) for n in range(20)]
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        for task in rng.sample(requests, 7):
            task.cancel()
        for n, answer in enumerate(await asyncio.gather(*requests, return_exceptions=True)):
            assert isinstance(answer, asyncio.CancelledError) or answer == [str(n)]


@pytest.mark.parametrize("spin_us", [0, 1000])
async def test_no_reader_gets_the_value_of_another_key(valkey_url: Secret, spin_us: int) -> None:
    """Values name their keys; readers are cancelled, connections cut at any byte."""
    rng = random.Random(SEED)  # noqa: S311
    config = CacheConfig(prefix="qts-test-wire:", socket_timeout_ms=5000, spin_us=spin_us)
    keys = [f"{config.prefix}{n}" for n in range(50)]
    right = 0
    async with (
        Proxy.in_thread(valkey_url) as proxy,
        RedisStore.open(proxy.url_of(valkey_url), config) as store,
    ):
        await store.write([entry(key) for key in keys])

        async def read() -> None:
            nonlocal right
            requests = rng.sample(keys, 4)
            try:
                found = await store.read(requests)
            except UnreachableError:
                return
            assert [each and each["key"] for each in found] == requests
            right += 1

        for turn in range(120):
            proxy.cut_after = rng.randrange(4000) if turn % 2 else None
            readers = [asyncio.create_task(read()) for _ in range(8)]
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            for task in rng.sample(readers, 2):
                task.cancel()
            if turn % 10 == 9:
                proxy.reset_all()
            for done in await asyncio.gather(*readers, return_exceptions=True):
                if done is not None and not isinstance(done, asyncio.CancelledError):
                    raise done
        proxy.heal()
        proxy.reset_all()
        await store.delete(keys)
    assert right > 100


async def test_spinning_reads_the_reply(connection: RedisConnection) -> None:
    """The loop does not run between request and reply."""
    loop_ran = asyncio.Event()
    assert await connection.send_pieces(((pack(("PING",)), 1),), spin_s=5.0) == [
        "PONG"
    ]  # sleeps at first
    asyncio.get_running_loop().call_soon(loop_ran.set)
    assert await connection.send_pieces(((pack(("ECHO", "a")), 1),), spin_s=5.0) == ["a"]
    assert not loop_ran.is_set()
    assert await connection.send_pieces(((pack(("ECHO", "b")), 1),)) == ["b"]
    assert loop_ran.is_set()


async def test_spinning_reads_the_replies_to_earlier_callers(
    connection: RedisConnection,
) -> None:
    assert await connection.send_pieces(((pack(("PING",)), 1),), spin_s=5.0) == [
        "PONG"
    ]  # sleeps at first
    waiting = [asyncio.create_task(connection.call([("ECHO", str(n))])) for n in range(20)]
    await asyncio.sleep(0)
    assert await connection.send_pieces(((pack(("ECHO", "mine")), 1),), spin_s=5.0) == ["mine"]
    assert await asyncio.gather(*waiting) == [[str(n)] for n in range(20)]


def test_the_recently_faster_way_is_chosen_and_the_other_one_tried() -> None:
    policy = SpinPolicy()
    for spun_s, slept_s, expected in ((50e-6, 90e-6, 31), (90e-6, 50e-6, 1), (50e-6, 90e-6, 31)):
        for _ in range(3000):
            spun = policy.choose()
            policy.record(spun, spun_s if spun else slept_s)
        assert sum(policy.choose() for _ in range(32)) == expected


def test_one_slow_call_does_not_change_the_choice_for_long() -> None:
    policy = SpinPolicy()
    for turn in range(1000):
        spun = policy.choose()
        policy.record(spun, 10.0 if turn == 500 else 50e-6 if spun else 90e-6)
    assert sum(policy.choose() for _ in range(32)) == 31


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
async def test_data_beyond_the_socket_buffer_is_sent_in_order(
    valkey_url: Secret, run: Callable[..., list[list[str]]]
) -> None:
    big = "x" * 20_000_000

    async def talk() -> list[list[str]]:
        connection = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=60_000))
        await connection.call([("PING",)])
        try:
            texts = ["a", big, *(str(n) for n in range(20)), big, "z"]
            return [*await asyncio.gather(*(connection.call([("ECHO", text)]) for text in texts))]
        finally:
            await connection.close()

    found = await asyncio.to_thread(lambda: run(talk()))
    assert [text for (text,) in found] == ["a", big, *(str(n) for n in range(20)), big, "z"]


async def test_a_failing_iterator_leaves_the_connection_in_order(
    connection: RedisConnection,
) -> None:
    def echo(text: str) -> tuple[bytes, int]:
        return pack(("ECHO", text)), 1

    def broken(after: int) -> Iterator[tuple[bytes, int]]:
        for n in range(after):
            yield echo(f"lost {n}")
        raise ValueError("no more")

    await connection.call([("PING",)])
    for after in (0, 1, 3):
        with pytest.raises(ValueError, match="no more"):
            await connection.send_pieces(broken(after))
        assert await connection.send_pieces([echo("x"), echo("y")]) == ["x", "y"]
    assert await connection.send_pieces([]) == []


async def test_a_silent_connection_is_cut_and_replaced(valkey_url: Secret) -> None:
    config = CacheConfig(socket_timeout_ms=100)
    async with Proxy.to_url(valkey_url) as proxy:
        connection = RedisConnection(proxy.url_of(valkey_url), config)
        assert await connection.call([("PING",)]) == ["PONG"]
        proxy.silent = True
        with pytest.raises(UnreachableError, match="no reply for 100 ms"):
            await connection.call([("PING",)])
        proxy.silent = False
        assert await connection.call([("PING",)]) == ["PONG"]
        assert proxy.connections == 2
        await connection.close()


async def test_another_protocol_is_not_taken_for_a_reply() -> None:
    async def web(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(web, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = RedisConnection(Secret(f"redis://127.0.0.1:{port}"), CacheConfig())
        with pytest.raises(UnreachableError):
            await connection.call([("PING",)])
        await connection.close()


async def test_a_wrong_password_is_not_in_the_error(valkey: ValkeyServer) -> None:
    connection = RedisConnection(Secret(f"redis://:canary@127.0.0.1:{valkey.port}"), CacheConfig())
    with pytest.raises(UnreachableError, match="refused the handshake") as refused:
        await connection.call([("PING",)])
    assert "canary" not in str(refused.value)
    await connection.close()


async def test_a_closed_port_is_unreachable_at_once() -> None:
    connection = RedisConnection(Secret("redis://127.0.0.1:1"), CacheConfig())
    with pytest.raises(UnreachableError, match=r"no reply from 127\.0\.0\.1:1"):
        await connection.call([("PING",)])
    await connection.close()


WRITER = """
import asyncio, sys
from qts.cache import CacheConfig
from qts.cache.connection import pack
from qts.cache.redis import RedisStore
from qts.cache.store import StoreWrite
from qts.domain import Secret

async def main():
    async with RedisStore.open(Secret(sys.argv[1]), CacheConfig()) as store:
        print("ready", flush=True)
        n = 0
        while True:
            n += 1
            keys = [f"{sys.argv[2]}{n % 20}:{i}" for i in range(20)]
            fields = (("ver",), (str(n),), None, sys.argv[3])
            await store.write([StoreWrite(key, n, 60000, *fields) for key in keys])

asyncio.run(main())
"""


async def test_a_value_without_a_ttl_is_never_seen(valkey_url: Secret) -> None:
    """Writers are killed at any moment; whatever they left has a TTL."""
    rng, prefix = random.Random(SEED), "qts-test-ttl:"  # noqa: S311
    connection = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=5000))

    async def write_and_die(layout: str) -> None:
        """Writers of one layout compete for it; the third has its own."""
        arguments = (WRITER, valkey_url.reveal(), f"{prefix}{layout}:", layout)
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", *arguments, stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        assert await writer.stdout.readline() == b"ready\n"
        await asyncio.sleep(rng.uniform(0.01, 0.1))
        writer.kill()
        await writer.communicate()

    await asyncio.gather(*(write_and_die(layout) for layout in ("ours", "ours", "mine")))
    (keys,) = await connection.call([("KEYS", f"{prefix}*")])
    assert len(keys) > 100
    ttls = await connection.call([("PTTL", key) for key in keys])
    assert all(0 < ttl_ms <= 60_000 for ttl_ms in ttls)
    await connection.call([("DEL", *keys)])
    await connection.close()


def test_no_ttl_is_in_whole_seconds() -> None:
    """EXPIRE with 0.1 s deletes the key at once; only milliseconds are sent."""
    import qts.cache

    source = "\n".join(path.read_text() for path in Path(qts.cache.__path__[0]).glob("*.py"))
    for wrong in ("'EXPIRE'", '"EXPIRE"', ".expire(", "setex", "SETEX"):
        assert wrong not in source
