"""What is said to a Redis server: three scripts, a few commands, and how replies are read.

A script is called by its digest. A server that was restarted or flushed has forgotten it and
says NOSCRIPT; the same call is then made once more with the text itself.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from qts.cache.address import Command, pack
from qts.cache.entry import BookSides
from qts.cache.store import CountRequest, Fields, StoreWrite
from qts.domain import OperationError, UnreachableError

# The first thing each script writes is something a full server refuses: what follows a write
# that was let through, such as DEL, it would let through as well.

# KEYS: hashes with the same fields, and where the writer leaves its token if it has one. ARGV: how
# many fields, 1 when fields of before may have to go, which field is the version, the token, the
# names of the fields; then for each key its TTL in ms and its texts. The names are said once: half
# of what a batch costs is words. A token that is there already is not touched: it may be watched.
_WRITE = """
local count, varies, version = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local say, told, at, last = {'HSET', ''}, {}, 4 + count, #KEYS
if ARGV[4] ~= '' then
  if redis.call('GET', KEYS[last]) ~= ARGV[4] then
    redis.call('SET', KEYS[last], ARGV[4], 'PX', 3600000)
  end
  last = last - 1
end
for i = 1, count do say[2 * i + 1] = ARGV[4 + i] end
for i = 1, last do
  local key = KEYS[i]
  local seen = redis.call('HGET', key, 'ver')
  if seen and tonumber(seen) > tonumber(ARGV[at + 1 + version]) then
    told[i] = 0
  else
    say[2] = key
    for f = 1, count do say[2 * f + 2] = ARGV[at + 1 + f] end
    redis.call(unpack(say))
    if varies and redis.call('HLEN', key) > count then
      redis.call('DEL', key)
      redis.call(unpack(say))
    end
    redis.call('PEXPIRE', key, ARGV[at + 1])
    told[i] = 1
  end
  at = at + 1 + count
end
return told
"""

# KEYS: hash, bids, asks. ARGV: version, TTL in ms, parts of the hash, of the bids, of the asks,
# then the parts.
_WRITE_BOOK = """
local seen = redis.call('HGET', KEYS[1], 'ver')
if seen and tonumber(seen) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'ver', ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
local at = 6
for i, say in ipairs({'HSET', 'ZADD', 'ZADD'}) do
  local parts = tonumber(ARGV[2 + i])
  if parts > 0 then
    redis.call(say, KEYS[i], unpack(ARGV, at, at + parts - 1))
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
  at = at + parts
end
return 1
"""

_READ_BOOK = """
local last = tonumber(ARGV[1]) - 1
return {
  redis.call('HGETALL', KEYS[1]),
  redis.call('ZREVRANGE', KEYS[2], 0, last),
  redis.call('ZRANGE', KEYS[3], 0, last),
}
"""

# KEYS: a set. ARGV: member, limit, end (Unix ms), 1 when the known members follow. The empty
# member marks a count that was begun, and is not counted.
_COUNT = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  if ARGV[4] == '0' then return -1 end
  redis.call('SADD', KEYS[1], '')
  redis.call('PEXPIREAT', KEYS[1], ARGV[3])
end
for i = 5, #ARGV do redis.call('SADD', KEYS[1], ARGV[i]) end
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then
  if redis.call('SCARD', KEYS[1]) - 1 >= tonumber(ARGV[2]) then return -2 end
  redis.call('SADD', KEYS[1], ARGV[1])
end
return redis.call('SCARD', KEYS[1]) - 1
"""


def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


_TEXT = {_digest(script): script for script in (_WRITE, _WRITE_BOOK, _READ_BOOK, _COUNT)}
_WRITE_SHA, _WRITE_BOOK_SHA, _READ_BOOK_SHA, _COUNT_SHA = _TEXT

# The server is there and cannot answer now: as good as absent.
_AWAY = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "UNBLOCKED")


def layout(entry: StoreWrite) -> str | tuple[str, ...]:
    """Entries of one layout can be written by one script."""
    return entry.layout or tuple(entry.names)


def write(entries: Sequence[StoreWrite], writer: tuple[str, str] | None = None) -> Command:
    """All of them by one script: they have one layout, and none is a book.

    `writer`: the key where it leaves its token, and the token.
    """
    names = entries[0].names
    varies = int(not entries[0].layout)
    key, token = writer or ("", "")
    said: list[str | int] = ["EVALSHA", _WRITE_SHA, len(entries) + bool(token)]
    said += [entry.key for entry in entries]
    if token:
        said.append(key)
    said += (len(names), varies, names.index("ver") + 1, token, *names)
    for entry in entries:
        said.append(entry.ttl_ms)
        said += entry.texts
    return said


def write_plain(entries: Sequence[StoreWrite]) -> bytes:
    """HSET and PEXPIRE of each as they go over the wire, in a third of the time packing takes."""
    said: list[str] = []
    for entry in entries:
        texts, ttl = entry.texts, str(entry.ttl_ms)
        end, form = 3 * len(texts), _form(entry.key, entry.names).copy()
        try:
            form[1:end:3] = [_LENGTHS[len(text)] for text in texts]
        except IndexError:
            form[1:end:3] = [f"${len(text)}\r\n" for text in texts]
        form[2:end:3] = texts
        form[end + 1 : end + 3] = _LENGTHS[len(ttl)], ttl
        said += form
    if (packed := "".join(said)).isascii():
        return packed.encode()
    return b"".join(map(_packed, entries))  # in bytes the lengths are others


def _packed(entry: StoreWrite) -> bytes:
    parts = (part for pair in zip(entry.names, entry.texts, strict=True) for part in pair)
    return pack(("HSET", entry.key, *parts)) + pack(("PEXPIRE", entry.key, entry.ttl_ms))


_LENGTHS = [f"${length}\r\n" for length in range(128)]


@functools.lru_cache(8192)
def _form(key: str, names: tuple[str, ...]) -> list[str]:
    """To be filled in: after what stands before it, the length of each text and the text."""
    named = f"${len(key)}\r\n{key}"
    words = [f"\r\n${len(name)}\r\n{name}\r\n" for name in names]
    words[0] = f"*{2 + 2 * len(names)}\r\n$4\r\nHSET\r\n{named}{words[0]}"
    words.append(f"\r\n*3\r\n$7\r\nPEXPIRE\r\n{named}\r\n")
    return [part for each in words for part in (each, "", "")] + ["\r\n"]


def write_book(entry: StoreWrite, sides: BookSides) -> Command:
    parts: list[list[str | int]] = [
        [part for pair in zip(entry.names, entry.texts, strict=True) for part in pair],
        [part for units, volume in sides.bids for part in (units, f"{units}:{volume}")],
        [part for units, volume in sides.asks for part in (units, f"{units}:{volume}")],
    ]
    sizes = [len(each) for each in parts]
    head = ("EVALSHA", _WRITE_BOOK_SHA, 3, *book_keys(entry.key), entry.ver, entry.ttl_ms)
    return (*head, *sizes, *parts[0], *parts[1], *parts[2])


def read_book(key: str, depth: int) -> Command:
    return ("EVALSHA", _READ_BOOK_SHA, 3, *book_keys(key), depth)


def count(count: CountRequest, known: Collection[str] | None) -> Command:
    head = ("EVALSHA", _COUNT_SHA, 1, count.key, count.member, count.limit, count.until_ms)
    return (*head, "0") if known is None else (*head, "1", *known)


def book_keys(key: str) -> tuple[str, str, str]:
    return key, f"{key}:bid", f"{key}:ask"


def with_text(command: Command) -> Command:
    """The same call of a script, with its text instead of its digest."""
    return ("EVAL", _TEXT[str(command[1])], *command[2:])


def is_forgotten(reply: object) -> bool:
    # redis-py takes the word NOSCRIPT off; both keep the rest.
    return isinstance(reply, Exception) and "No matching script" in str(reply)


def error(where: str, reply: Exception) -> OperationError:
    text = str(reply)
    if text.startswith(_AWAY):
        return UnreachableError(f"{where} cannot answer now: {text}")
    return OperationError(f"{where} refused: {text}")


def fields(reply: Any) -> Fields | None:
    """A hash; there is none where the server says it is empty."""
    if isinstance(reply, list):
        parts = iter(reply)
        reply = dict(zip(parts, parts, strict=False))  # the server tells pairs; strict takes longer
    return reply or None


def book(reply: Any) -> tuple[Fields, BookSides] | None:
    found = fields(reply[0])
    return (found, BookSides(_levels(reply[1]), _levels(reply[2]))) if found else None


def _levels(members: Sequence[str]) -> list[tuple[int, str]]:
    pairs = (member.split(":") for member in members)
    return [(int(units), volume) for units, volume in pairs]


def info(text: str) -> Fields:
    """The answer to INFO, by name."""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
