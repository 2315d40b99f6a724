"""Shared ring between two processes: whole records in order, also after a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qts._native import SharedRing
from qts.events.lane_child import Memory, open_ring, shared_memory
from tests.events.samples import TIMEOUT_S


def small(capacity: int = 256) -> tuple[SharedRing, SharedRing]:
    """Return both sides of a ring in one process."""
    memory = shared_memory(capacity)
    return open_ring(memory), open_ring(memory)


class AgainstAList(RuleBasedStateMachine):
    """Pushes and pops in any order, compared with a list."""

    def __init__(self) -> None:
        super().__init__()
        self.writer, self.reader = small()
        self.model: list[bytes] = []
        self.paused = False

    def used(self) -> int:
        return sum(8 + (len(record) + 7) // 8 * 8 for record in self.model)

    @rule(record=st.binary(max_size=248))
    def push(self, record: bytes) -> None:
        fits = self.used() + 8 + (len(record) + 7) // 8 * 8 <= 256
        assert self.writer.push(record, 0) == fits
        if fits:
            self.model.append(record)

    @rule()
    def pop(self) -> None:
        expected = self.model.pop(0) if self.model and not self.paused else None
        assert self.reader.pop(0) == expected

    @rule(most=st.integers(0, 5))
    def pop_many(self, most: int) -> None:
        expected = [] if self.paused else self.model[:most]
        assert self.reader.pop_many(most, 0) == expected
        del self.model[: len(expected)]

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.writer.pause(paused)
        self.paused = paused

    @invariant()
    def nothing_is_marked(self) -> None:
        assert self.reader.in_flight() == []


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=50, stateful_step_count=40)


@given(st.integers(0, 15), st.integers(1, 2**64 - 1))
def test_a_mark_holds_the_frame_of_a_thread(slot: int, frame: int) -> None:
    engine_side, process_side = small()
    process_side.mark_in_flight(slot, frame)
    assert [each for each, _ in engine_side.in_flight()] == [frame]
    process_side.mark_in_flight(slot, 0)
    assert engine_side.in_flight() == []


def test_a_record_larger_than_the_ring_is_refused() -> None:
    writer, _ = small()
    assert writer.max_record_size == 248
    with pytest.raises(ValueError, match="larger than the ring"):
        writer.push(b"x" * 249, 0)


def test_a_ring_without_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes of memory"):
        small(8)


def test_a_sleeping_reader_is_woken() -> None:
    writer, reader = small()
    got: list[bytes | None] = []
    thread = threading.Thread(target=lambda: got.append(reader.pop(TIMEOUT_S)))
    thread.start()
    assert writer.push(b"word", 0)
    writer.wake()
    thread.join(TIMEOUT_S)
    assert got == [b"word"]


def test_a_closed_ring_lets_a_sleeper_go() -> None:
    writer, reader = small()
    thread = threading.Thread(target=reader.pop, args=(3600.0,))
    thread.start()
    writer.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert reader.closed


def push_until_killed(memory: Memory, sizes: list[int]) -> None:
    ring, number = open_ring(memory), 0
    while True:
        record = number.to_bytes(8, "little") + b"x" * sizes[number % len(sizes)]
        if ring.push(record, 0.1):
            ring.wake()
            number += 1


def test_a_writer_killed_at_any_moment_leaves_whole_records_in_order() -> None:
    """The writer is killed while it writes: no gap, no torn record."""
    sizes = [0, 1, 7, 8, 100, 3000, 50_000]
    memory = shared_memory()
    process = multiprocessing.get_context("spawn").Process(
        target=push_until_killed, args=(memory, sizes), daemon=True
    )
    process.start()
    reader, number = open_ring(memory), 0

    def read(seconds: float) -> int:
        nonlocal number
        found = reader.pop_many(100, seconds)
        for record in found:
            assert int.from_bytes(record[:8], "little") == number
            assert record[8:] == b"x" * sizes[number % len(sizes)]
            number += 1
        return len(found)

    while number < 5000:
        read(TIMEOUT_S)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process.close()
    while read(0):
        pass
    assert number >= 5000
