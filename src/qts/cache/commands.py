"""Redis commands and scripts, and decoding of replies.

A script is called by its digest. A restarted or flushed server lacks it and replies NOSCRIPT; the
call is then repeated once with the text of the script.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from qts.cache.connection import Command, pack
from qts.cache.store import BookSides, CountRequest, Fields, StoreWrite, book_keys
from qts.domain import OperationError, UnreachableError

# The first write of each script is one that a full server refuses: after an accepted write, the
# server accepts the rest of the script as well.

# KEYS: hashes with the same fields, and the writer's token key, if any. ARGV: number of fields,
# 1 if old fields may have to be deleted, index of the version, the token, the field names; then for
# each key its TTL in ms and its texts. Names are sent once: arguments are half the cost of a
# batch. A token that is already stored is not written again: it may be watched.
_WRITE = """
local count, varies, version = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local args, results, at, last = {'HSET', ''}, {}, 4 + count, #KEYS
if ARGV[4] ~= '' then
  if redis.call('GET', KEYS[last]) ~= ARGV[4] then
    redis.call('SET', KEYS[last], ARGV[4], 'PX', 3600000)
  end
  last = last - 1
end
for i = 1, count do args[2 * i + 1] = ARGV[4 + i] end
for i = 1, last do
  local key = KEYS[i]
  local stored = redis.call('HGET', key, 'ver')
  if stored and tonumber(stored) > tonumber(ARGV[at + 1 + version]) then
    results[i] = 0
  else
    args[2] = key
    for f = 1, count do args[2 * f + 2] = ARGV[at + 1 + f] end
    redis.call(unpack(args))
    if varies and redis.call('HLEN', key) > count then
      redis.call('DEL', key)
      redis.call(unpack(args))
    end
    redis.call('PEXPIRE', key, ARGV[at + 1])
    results[i] = 1
  end
  at = at + 1 + count
end
return results
"""

# KEYS: hash, bids, asks. ARGV: version, TTL in ms, parts of the hash, of the bids, of the asks,
# then the parts.
_WRITE_BOOK = """
local stored = redis.call('HGET', KEYS[1], 'ver')
if stored and tonumber(stored) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'ver', ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
local at = 6
for i, args in ipairs({'HSET', 'ZADD', 'ZADD'}) do
  local parts = tonumber(ARGV[2 + i])
  if parts > 0 then
    redis.call(args, KEYS[i], unpack(ARGV, at, at + parts - 1))
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

# KEYS: a set. ARGV: member, limit, end (Unix ms), 1 if the known members follow. The empty
# member marks an existing count, and is not counted.
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

# The server is up but cannot serve now.
_UNAVAILABLE = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "UNBLOCKED")


def layout(entry: StoreWrite) -> str | tuple[str, ...]:
    """Return a key that entries share if one script can write them."""
    return entry.layout or tuple(entry.names)


def write(entries: Sequence[StoreWrite], writer: tuple[str, str] | None = None) -> Command:
    """Build a script call that writes entries of one layout, none of them a book.

    `writer` is the key for the writer's token, and the token.
    """
    names = entries[0].names
    varies = int(not entries[0].layout)
    key, token = writer or ("", "")
    parts: list[str | int] = ["EVALSHA", _WRITE_SHA, len(entries) + bool(token)]
    parts += [entry.key for entry in entries]
    if token:
        parts.append(key)
    parts += (len(names), varies, names.index("ver") + 1, token, *names)
    for entry in entries:
        parts.append(entry.ttl_ms)
        parts += entry.texts
    return parts


def write_plain(entries: Sequence[StoreWrite]) -> bytes:
    """Encode HSET and PEXPIRE of each entry, in a third of the time that packing takes."""
    parts: list[str] = []
    for entry in entries:
        texts, ttl = entry.texts, str(entry.ttl_ms)
        end, template = 3 * len(texts), _template(entry.key, entry.names).copy()
        try:
            template[1:end:3] = [_LENGTHS[len(text)] for text in texts]
        except IndexError:
            template[1:end:3] = [f"${len(text)}\r\n" for text in texts]
        template[2:end:3] = texts
        template[end + 1 : end + 3] = _LENGTHS[len(ttl)], ttl
        parts += template
    if (packed := "".join(parts)).isascii():
        return packed.encode()
    return b"".join(map(_pack_entry, entries))  # lengths are in bytes


def _pack_entry(entry: StoreWrite) -> bytes:
    parts = (part for pair in zip(entry.names, entry.texts, strict=True) for part in pair)
    return pack(("HSET", entry.key, *parts)) + pack(("PEXPIRE", entry.key, entry.ttl_ms))


_LENGTHS = [f"${length}\r\n" for length in range(128)]


@functools.lru_cache(8192)
def _template(key: str, names: tuple[str, ...]) -> list[str]:
    """Return protocol segments with gaps for the length and text of each field."""
    named = f"${len(key)}\r\n{key}"
    segments = [f"\r\n${len(name)}\r\n{name}\r\n" for name in names]
    segments[0] = f"*{2 + 2 * len(names)}\r\n$4\r\nHSET\r\n{named}{segments[0]}"
    segments.append(f"\r\n*3\r\n$7\r\nPEXPIRE\r\n{named}\r\n")
    return [part for each in segments for part in (each, "", "")] + ["\r\n"]


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


def with_text(command: Command) -> Command:
    """Return the script call with the text in place of the digest."""
    return ("EVAL", _TEXT[str(command[1])], *command[2:])


def is_missing_script(reply: object) -> bool:
    # redis-py removes the prefix NOSCRIPT.
    return isinstance(reply, Exception) and "No matching script" in str(reply)


def error(where: str, reply: Exception) -> OperationError:
    text = str(reply)
    if text.startswith(_UNAVAILABLE):
        return UnreachableError(f"{where} cannot serve now: {text}")
    return OperationError(f"{where} refused: {text}")


def fields(reply: Any) -> Fields | None:
    """Decode a hash; return None if it is empty."""
    if isinstance(reply, list):
        parts = iter(reply)
        reply = dict(zip(parts, parts, strict=False))  # always pairs; strict takes longer
    return reply or None


def book(reply: Any) -> tuple[Fields, BookSides] | None:
    found = fields(reply[0])
    return (found, BookSides(_levels(reply[1]), _levels(reply[2]))) if found else None


def _levels(members: Sequence[str]) -> list[tuple[int, str]]:
    pairs = (member.split(":") for member in members)
    return [(int(units), volume) for units, volume in pairs]


def info(text: str) -> Fields:
    """Decode the reply to INFO."""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
