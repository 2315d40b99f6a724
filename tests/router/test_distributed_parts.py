"""The edge without a server: codec, send window and delivery tracker."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import OperationError, RefusedError, Secret
from qts.router import MESSAGE, EdgeConfig, load_scenario, strategies_only
from qts.router.distributed.edge import Batch, decode, encode
from qts.router.distributed.receiver import DeliveryTracker
from qts.router.distributed.sender import SendWindow

Stream = tuple[int, int]  # producer, type

streams = st.tuples(st.integers(0, 255), st.integers(0, 7))
journeys = st.lists(st.tuples(st.sampled_from([(0, 0), (0, 3), (7, 0), (255, 7)]), st.booleans()))


def edge(**changes: Any) -> EdgeConfig:
    return EdgeConfig(**{"url": Secret("nats://u:canary@host:1234"), "run": "r-1", **changes})


def rows(order: list[Stream], start: dict[Stream, int] | None = None) -> Any:
    """Messages in this order, numbered as a source numbers them."""
    count = dict(start or {})
    sequence: dict[int, int] = {}
    array = np.zeros(len(order), MESSAGE)
    for row, (producer, kind) in zip(array, order, strict=True):
        number = count.get((producer, kind), 0)
        count[producer, kind] = number + 1
        sequence[producer] = sequence.get(producer, 1000 * sum((start or {}).values())) + 1
        row["producer_id"], row["msg_type"] = producer, kind
        row["stream_number"], row["sequence_number"] = number % 65536, sequence[producer]
    return array


def sent(order: list[tuple[Stream, bool]]) -> list[Batch]:
    """Batches of a sender; True ends a batch."""
    window = SendWindow(batch=100_000, held=100_000)
    for row, (_, cut) in zip(rows([stream for stream, _ in order]), order, strict=True):
        window.add(np.array([row]))
        if cut:
            window.seal()
    window.finish()
    return [decode(one.data) for one in iter_from(window, 0)]


def iter_from(window: SendWindow, number: int) -> list[Any]:
    found = []
    while (batch := window.after(number)) is not None:
        found.append(batch)
        number = batch.number
    return found


def numbers_by_stream(passed: list[Any]) -> dict[Stream, list[tuple[int, int]]]:
    found: dict[Stream, list[tuple[int, int]]] = {}
    for array in passed:
        for row in array:
            key = int(row["producer_id"]), int(row["msg_type"])
            found.setdefault(key, []).append(
                (int(row["sequence_number"]), int(row["stream_number"]))
            )
    return found


@given(st.integers(1, 2**63), st.dictionaries(streams, st.integers(0, 2**63)), st.booleans())
def test_a_batch_comes_out_as_it_went_in(
    number: int, before: dict[Stream, int], last: bool
) -> None:
    table = {producer * 8 + kind: count for (producer, kind), count in before.items()}
    messages = rows(list(before))
    out = decode(encode(number, table, messages.tobytes(), last=last))
    assert (out.number, out.last, out.before) == (number, last, table)
    assert out.messages.tobytes() == messages.tobytes()
    assert out.messages.flags.writeable


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:10], "not a batch"),
        (lambda data: b"X" + data[1:], "another version"),
        (lambda data: data[:-1], "cut off"),
        (lambda data: data + b"x", "too long"),
    ],
)
def test_a_damaged_batch_raises(damage: Any, expected: str) -> None:
    with pytest.raises(OperationError, match=expected):
        decode(damage(encode(1, {0: 0}, rows([(0, 0)]).tobytes())))


@given(journeys)
def test_a_sink_from_the_start_passes_everything_on_once_and_in_order(
    order: list[tuple[Stream, bool]],
) -> None:
    *batches, last = sent(order)
    tracker = DeliveryTracker(range(8))
    passed = numbers_by_stream([tracker.admit(batch) for batch in batches])
    assert tracker.admitted == len(order) == sum(last.before.values())
    assert list(tracker.missing(last.before, from_start=True)) == []
    assert tracker.earlier(last.before, from_start=True) == 0
    for pairs in passed.values():
        assert [number for _, number in pairs] == list(range(len(pairs)))
        assert all(a < b for (a, _), (b, _) in pairwise(pairs))


@given(journeys, st.data())
def test_a_later_sink_resumes_after_its_positions(
    order: list[tuple[Stream, bool]], data: st.DataObject
) -> None:
    """The first sink confirmed some batches and handled some messages of the next ones."""
    *batches, last = sent(order)
    confirmed = data.draw(st.integers(0, len(batches)))
    whole = numbers_by_stream([batch.messages.copy() for batch in batches])
    handled = numbers_by_stream([batch.messages.copy() for batch in batches[:confirmed]])
    positions, done = {}, 0
    for stream, pairs in whole.items():
        least = len(handled.get(stream, []))
        reached = data.draw(st.integers(least, len(pairs)))
        done += reached
        if reached:
            positions[stream] = pairs[reached - 1][0]
    tracker = DeliveryTracker(range(8), positions)
    passed = numbers_by_stream([tracker.admit(batch) for batch in batches[confirmed:]])
    for stream, pairs in whole.items():
        fresh = [pair for pair in pairs if pair[0] > positions.get(stream, -1)]
        assert [a for a, _ in passed.get(stream, [])] == [a for a, _ in fresh]
        assert [n for _, n in passed.get(stream, [])] == list(range(len(fresh)))
    from_start = confirmed == 0
    earlier = tracker.earlier(last.before, from_start)
    assert earlier + tracker.skipped == done
    assert earlier + tracker.skipped + tracker.admitted == len(order)
    assert list(tracker.missing(last.before, from_start)) == []


@given(journeys.filter(lambda order: any(cut for _, cut in order)), st.data())
def test_a_lost_batch_is_counted_stream_by_stream(
    order: list[tuple[Stream, bool]], data: st.DataObject
) -> None:
    *batches, last = sent(order)
    lost = batches.pop(data.draw(st.integers(0, len(batches) - 1)))
    tracker = DeliveryTracker(range(8))
    for batch in batches:
        tracker.admit(batch)
    # The first batch of the run tells by its number that this sink began there.
    missing = dict(tracker.missing(last.before, from_start=True))
    unseen_before = tracker.earlier(last.before, from_start=True)
    assert sum(missing.values()) + unseen_before == len(lost.messages)


def test_numbers_continue_beyond_65536() -> None:
    tracker = DeliveryTracker([0])
    before = 200_000
    late = Batch(9, False, {0: before}, rows([(0, 0)] * 3, {(0, 0): before}))
    assert tracker.admit(late)["stream_number"].tolist() == [0, 1, 2]


def test_a_message_out_of_order_is_passed_on_to_strategies() -> None:
    messages = rows([(0, 0)] * 3)
    messages["sequence_number"] = [5, 7, 6]
    assert len(DeliveryTracker([0]).admit(Batch(1, False, {0: 0}, messages))) == 3


def test_positions_of_types_without_order_are_refused() -> None:
    with pytest.raises(RefusedError, match="order is not promised"):
        DeliveryTracker([0, 2], {(0, 1): 5})


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "store", "confirm", "lose"]), st.integers(1, 10)),
        min_size=20,
        max_size=60,
    )
)
def test_a_window_accounts_for_every_message(moves: list[tuple[str, int]]) -> None:
    window, handed = SendWindow(batch=10, held=4), 0
    for move, size in moves:
        if move == "add":
            window.add(rows([(1, 1)] * size))
            handed += size
        elif move == "store":
            sendable = iter_from(window, window.stored)
            due = range(window.stored + 1, min(window.sealed, window.confirmed + 4) + 1)
            assert [one.number for one in sendable] == list(due)
            window.mark_stored(max([window.stored, *due[:size]]))
        elif move == "lose":
            end = window.stored - size
            window.mark_end(end)
            assert window.stored == max(end, window.confirmed)
        else:
            window.mark_confirmed(min(window.stored, window.confirmed + size))
        counts = window.counts()
        assert counts.handed == handed == counts.confirmed + counts.in_stream + counts.unstored
        assert window.confirmed <= window.stored <= window.sealed


def test_a_window_is_complete_when_its_last_batch_is_confirmed() -> None:
    window = SendWindow(batch=10, held=10)
    window.add(rows([(0, 0)] * 7))
    window.finish()
    assert window.sealed == 2
    window.mark_stored(2)
    states = []
    for number in (1, 2):
        window.mark_confirmed(number)
        states.append((window.complete, window.waits_for_sink))
    assert states == [(False, True), (True, False)]
    assert window.counts().confirmed == 7


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"url": Secret("http://canary@host")}, "expected nats or tls://host:port"),
        ({"url": Secret("canary")}, "expected nats or tls://host:port"),
        ({"url": Secret("nats://canary@host:99999")}, "expected nats or tls://host:port"),
        ({"run": "a.b"}, "letters, digits, _ and -"),
        ({"run": ""}, "letters, digits, _ and -"),
        ({"batch": 10}, "batch is 10; expected 256 to 8192"),
        ({"held": 0}, "held is 0"),
        ({"timeout_s": float("nan")}, "timeout"),
    ],
)
def test_odd_settings_are_refused_without_showing_the_password(
    changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RefusedError) as refusal:
        edge(**changes)
    assert expected in str(refusal.value)
    assert "canary" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("nats://u:canary@host:1234", "NATS at host:1234"),
        ("nats://host", "NATS at host:4222"),
        ("tls://[::1]:7", "NATS at ::1:7"),
    ],
)
def test_the_address_of_a_server_shows_no_password(url: str, server: str) -> None:
    assert edge(url=Secret(url)).server == server
    assert "canary" not in repr(edge(url=Secret(url)))


@pytest.mark.parametrize("name", ["baseline", "burst_pattern", "ordering_stress"])
def test_the_half_of_the_strategies_is_a_scenario(name: str) -> None:
    whole = load_scenario(name)
    half = strategies_only(whole)
    assert half.stage2_rules == whole.stage2_rules
    assert half.producers.messages_per_sec == pytest.approx(
        whole.producers.count * whole.producers.messages_per_sec
    )
    assert {kind: half.processing_ns(kind) for kind in half.stage1} == dict.fromkeys(half.stage1, 0)
    assert msgspec.structs.replace(half) == half
