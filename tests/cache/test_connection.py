"""One connection for many callers: nobody ever gets somebody else's answer."""

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
from qts.cache.address import pack
from qts.cache.connection import WAITING_MAX, RedisConnection, SpinPolicy
from qts.cache.redis import RedisStore
from qts.cache.store import StoreBusyError, StoreWrite
from qts.domain import Secret, UnreachableError
from qts.embedded import ValkeyServer
from tests.cache.proxy import Proxy

SEED = 20260131


@pytest.fixture
async def wire(valkey_url: Secret) -> AsyncIterator[RedisConnection]:
    wire = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=5000))
    yield wire
    await wire.close()


def entry(key: str, ver: int = 1) -> StoreWrite:
    return StoreWrite.of(
        key, ver, 60_000, {"ver": str(ver), "key": key, "pad": "x" * (len(key) * 37 % 500)}
    )


async def test_replies_come_in_the_order_of_the_commands(wire: RedisConnection) -> None:
    found = await wire.call([("ECHO", str(n)) for n in range(500)])
    assert found == [str(n) for n in range(500)]


async def test_callers_at_once_get_their_own_answers(wire: RedisConnection) -> None:
    found = await asyncio.gather(*(wire.call([("ECHO", str(n))]) for n in range(500)))
    assert found == [[str(n)] for n in range(500)]
    assert wire.waiting == 0


async def test_it_runs_on_uvloop_as_the_program_does(valkey_url: Secret) -> None:
    async def talk() -> list[list[str]]:
        wire = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=5000))
        try:
            asked = [wire.call([("ECHO", str(n))]) for n in range(50)]
            return [*await asyncio.gather(*asked)]
        finally:
            await wire.close()

    found = await asyncio.to_thread(lambda: uvloop.run(talk()))
    assert found == [[str(n)] for n in range(50)]


async def test_a_refusal_is_a_reply_like_any_other(wire: RedisConnection) -> None:
    first, second, third = await wire.call([("ECHO", "a"), ("NO SUCH",), ("ECHO", "b")])
    assert (first, third) == ("a", "b")
    assert "unknown command" in str(second)


async def test_too_many_calls_at_once_are_refused_as_busy(wire: RedisConnection) -> None:
    await wire.call([("PING",)])
    asked = [asyncio.create_task(wire.call([("PING",)])) for _ in range(WAITING_MAX + 10)]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, StoreBusyError) for each in done) == 10
    assert await wire.call([("PING",)]) == ["PONG"]


async def test_cancelled_callers_leave_their_place_and_not_their_answer(
    wire: RedisConnection,
) -> None:
    chance = random.Random(SEED)  # noqa: S311 - the same each time
    for _ in range(40):
        asked = [asyncio.create_task(wire.call([("ECHO", str(n))])) for n in range(20)]
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        for task in chance.sample(asked, 7):
            task.cancel()
        for n, answer in enumerate(await asyncio.gather(*asked, return_exceptions=True)):
            assert isinstance(answer, asyncio.CancelledError) or answer == [str(n)]


@pytest.mark.parametrize("spin_us", [0, 1000])
async def test_no_reader_gets_the_value_of_another_key(valkey_url: Secret, spin_us: int) -> None:
    """Values name their keys; readers are cancelled, connections cut at any byte."""
    chance = random.Random(SEED)  # noqa: S311
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
            asked = chance.sample(keys, 4)
            try:
                found = await store.read(asked)
            except UnreachableError:
                return
            assert [each and each["key"] for each in found] == asked
            right += 1

        for turn in range(120):
            proxy.cut_after = chance.randrange(4000) if turn % 2 else None
            readers = [asyncio.create_task(read()) for _ in range(8)]
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            for task in chance.sample(readers, 2):
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


async def test_an_answer_is_found_on_the_spot(wire: RedisConnection) -> None:
    """The loop has no turn between question and answer."""
    had_a_turn = asyncio.Event()
    assert await wire.say(((pack(("PING",)), 1),), spin_s=5.0) == ["PONG"]  # slept for, at first
    asyncio.get_running_loop().call_soon(had_a_turn.set)
    assert await wire.say(((pack(("ECHO", "a")), 1),), spin_s=5.0) == ["a"]
    assert not had_a_turn.is_set()
    assert await wire.say(((pack(("ECHO", "b")), 1),)) == ["b"]
    assert had_a_turn.is_set()


async def test_who_looks_on_the_spot_brings_the_answers_of_those_before(
    wire: RedisConnection,
) -> None:
    assert await wire.say(((pack(("PING",)), 1),), spin_s=5.0) == ["PONG"]  # slept for, at first
    waiting = [asyncio.create_task(wire.call([("ECHO", str(n))])) for n in range(20)]
    await asyncio.sleep(0)
    assert await wire.say(((pack(("ECHO", "mine")), 1),), spin_s=5.0) == ["mine"]
    assert await asyncio.gather(*waiting) == [[str(n)] for n in range(20)]


def test_the_way_that_was_faster_lately_is_taken_and_the_other_one_tried() -> None:
    looks = SpinPolicy()
    for looked_s, slept_s, wanted in ((50e-6, 90e-6, 31), (90e-6, 50e-6, 1), (50e-6, 90e-6, 31)):
        for _ in range(3000):
            looked = looks.choose()
            looks.note(looked, looked_s if looked else slept_s)
        assert sum(looks.choose() for _ in range(32)) == wanted


def test_one_call_that_was_held_up_does_not_change_the_way_for_long() -> None:
    looks = SpinPolicy()
    for turn in range(1000):
        looked = looks.choose()
        looks.note(looked, 10.0 if turn == 500 else 50e-6 if looked else 90e-6)
    assert sum(looks.choose() for _ in range(32)) == 31


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
async def test_what_the_socket_does_not_take_at_once_goes_out_in_order(
    valkey_url: Secret, run: Callable[..., list[list[str]]]
) -> None:
    big = "x" * 20_000_000

    async def talk() -> list[list[str]]:
        wire = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=60_000))
        await wire.call([("PING",)])
        try:
            texts = ["a", big, *(str(n) for n in range(20)), big, "z"]
            return [*await asyncio.gather(*(wire.call([("ECHO", text)]) for text in texts))]
        finally:
            await wire.close()

    found = await asyncio.to_thread(lambda: run(talk()))
    assert [text for (text,) in found] == ["a", big, *(str(n) for n in range(20)), big, "z"]


async def test_pieces_that_cannot_be_made_leave_the_line_in_order(wire: RedisConnection) -> None:
    def echo(text: str) -> tuple[bytes, int]:
        return pack(("ECHO", text)), 1

    def broken(after: int) -> Iterator[tuple[bytes, int]]:
        for n in range(after):
            yield echo(f"lost {n}")
        raise ValueError("no more")

    await wire.call([("PING",)])
    for after in (0, 1, 3):
        with pytest.raises(ValueError, match="no more"):
            await wire.say(broken(after))
        assert await wire.say([echo("x"), echo("y")]) == ["x", "y"]
    assert await wire.say([]) == []


async def test_a_silent_connection_is_cut_and_replaced(valkey_url: Secret) -> None:
    config = CacheConfig(socket_timeout_ms=100)
    async with Proxy.to_url(valkey_url) as proxy:
        wire = RedisConnection(proxy.url_of(valkey_url), config)
        assert await wire.call([("PING",)]) == ["PONG"]
        proxy.silent = True
        with pytest.raises(UnreachableError, match="no answer for 100 ms"):
            await wire.call([("PING",)])
        proxy.silent = False
        assert await wire.call([("PING",)]) == ["PONG"]
        assert proxy.connections == 2
        await wire.close()


async def test_another_protocol_is_not_taken_for_an_answer() -> None:
    async def web(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(web, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        wire = RedisConnection(Secret(f"redis://127.0.0.1:{port}"), CacheConfig())
        with pytest.raises(UnreachableError):
            await wire.call([("PING",)])
        await wire.close()


async def test_a_wrong_password_is_told_without_it(valkey: ValkeyServer) -> None:
    wire = RedisConnection(Secret(f"redis://:canary@127.0.0.1:{valkey.port}"), CacheConfig())
    with pytest.raises(UnreachableError, match="refuses us") as refused:
        await wire.call([("PING",)])
    assert "canary" not in str(refused.value)
    await wire.close()


async def test_a_closed_port_is_unreachable_at_once() -> None:
    wire = RedisConnection(Secret("redis://127.0.0.1:1"), CacheConfig())
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 does not answer"):
        await wire.call([("PING",)])
    await wire.close()


WRITER = """
import asyncio, sys
from qts.cache import CacheConfig
from qts.cache.address import pack
from qts.cache.redis import RedisStore
from qts.cache.store import Entry
from qts.domain import Secret

async def main():
    async with RedisStore.open(Secret(sys.argv[1]), CacheConfig()) as store:
        print("ready", flush=True)
        n = 0
        while True:
            n += 1
            keys = [f"{sys.argv[2]}{n % 20}:{i}" for i in range(20)]
            fields = (("ver",), (str(n),), None, sys.argv[3])
            await store.write([Entry(key, n, 60000, *fields) for key in keys])

asyncio.run(main())
"""


async def test_a_value_without_a_ttl_is_never_seen(valkey_url: Secret) -> None:
    """Writers are killed at any moment; whatever they left has a TTL."""
    chance, prefix = random.Random(SEED), "qts-test-ttl:"  # noqa: S311
    wire = RedisConnection(valkey_url, CacheConfig(socket_timeout_ms=5000))

    async def write_and_die(layout: str) -> None:
        """Those of one layout take its claim from each other, the third is left alone."""
        said = (WRITER, valkey_url.reveal(), f"{prefix}{layout}:", layout)
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", *said, stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        assert await writer.stdout.readline() == b"ready\n"
        await asyncio.sleep(chance.uniform(0.01, 0.1))
        writer.kill()
        await writer.communicate()

    await asyncio.gather(*(write_and_die(layout) for layout in ("ours", "ours", "mine")))
    (keys,) = await wire.call([("KEYS", f"{prefix}*")])
    assert len(keys) > 100
    lives = await wire.call([("PTTL", key) for key in keys])
    assert all(0 < life_ms <= 60_000 for life_ms in lives)
    await wire.call([("DEL", *keys)])
    await wire.close()


def test_nothing_in_the_room_uses_whole_seconds() -> None:
    """EXPIRE with 0.1 s deletes the key at once; only milliseconds are said to Redis."""
    import qts.cache

    source = "\n".join(path.read_text() for path in Path(qts.cache.__path__[0]).glob("*.py"))
    for wrong in ("'EXPIRE'", '"EXPIRE"', ".expire(", "setex", "SETEX"):
        assert wrong not in source
