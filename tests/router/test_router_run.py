"""A run from start to report: every message accounted for, whatever happens."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import msgspec
import pytest

from qts.domain import RefusedError
from qts.router import Options, Router, each
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    LayoutName,
    plan_for,
    scenario,
    short_stall_floor,
    until,
)


@pytest.mark.parametrize("layout", ["one worker", "two workers", "threads"])
def test_everything_offered_is_delivered(layout: LayoutName) -> None:
    small = scenario(producers=3, rate=100_000)
    report = Router(small, plan_for(small, layout)).run()
    assert report.verdict == "PASSED"
    assert report.offered == report.produced == report.delivered == 15_000
    assert report.undelivered == report.violations == report.gaps == 0
    assert sum(one.delivered for one in report.per_strategy) == 15_000


def test_bursts_add_up_exactly() -> None:
    small = scenario(producers=1, rate=100_000, seconds=0.1)
    burst = {"period_ms": 20, "on_ms": 2, "factor": 5.0, "base_factor": 0.5}
    values = msgspec.to_builtins(small)
    values["producers"]["burst"] = burst
    report = Router(msgspec.convert(values, type(small))).run()
    # 2 ms at 500 a millisecond and 18 ms at 50, five times
    assert report.delivered == 5 * (1000 + 900)
    assert report.verdict == "PASSED"


def test_the_same_seed_delivers_the_same_and_another_does_not() -> None:
    def streams(seed: int, layout: LayoutName) -> dict[tuple[int, int, int], tuple[int, int]]:
        small = scenario(seed=seed)
        router = Router(small, plan_for(small, layout), options=Options(digest=True))
        router.run()
        return router.streams

    first = streams(5, "one worker")
    assert first == streams(5, "threads")
    assert first != streams(6, "one worker")


def test_seconds_are_those_of_the_run() -> None:
    began = time.monotonic()
    report = Router(scenario(seconds=0.2)).run()
    assert 0.19 < report.seconds <= time.monotonic() - began
    assert report.rate_per_s == pytest.approx(report.delivered / report.seconds, rel=1e-3)


def test_total_latency_includes_the_strategy_and_the_wait_for_it() -> None:
    slow = scenario(producers=1, types=1, strategies=1, rate=4_000, seconds=0.1)
    values = msgspec.to_builtins(slow)
    values["strategies"]["processing_times_ns"] = {"strategy_0": 500_000}
    slow = msgspec.convert(values, type(slow))
    report = Router(slow, plan_for(slow, "two workers"), options=Options(sample=1)).run()
    # 400 messages due in 100 ms need 200 ms: the last one waits for most of what is before it
    total, strategy = report.latency_us["total"], report.latency_us["strategy"]
    assert strategy.p50 >= 500
    assert total.max >= 50_000
    assert report.seconds >= 0.19
    assert report.verdict == "PASSED"


def test_what_was_never_sent_is_noted_and_no_failure() -> None:
    small = scenario(rate=1_000, seconds=30)
    router = Router(small)
    router.start()
    until(lambda: router.delivered > 10)
    router.stop()
    until(lambda: router.wait(0.1))
    report = router.report
    assert report.verdict == "PASSED"
    missing = report.offered - report.produced
    note = f"{missing:,} of the offered messages were never sent (the run was stopped)"
    assert note in report.notes


def test_a_machine_busy_elsewhere_is_noted_and_no_failure() -> None:
    # The handler is slow in a way the plan cannot know of.
    small = scenario(producers=1, types=1, strategies=1, rate=10_000, seconds=0.1, ring_capacity=2)
    gate = threading.Event()
    router = Router(small, plan_for(small, "two workers"), strategies={0: lambda _: gate.wait()})
    router.start()
    threading.Timer(0.5, gate.set).start()
    until(lambda: router.wait(0.1))
    report = router.report
    assert report.verdict == "PASSED"
    assert report.produced < report.offered
    assert any(note.endswith("(the machine was busy elsewhere)") for note in report.notes)


def test_the_report_says_how_much_memory_it_took() -> None:
    report = Router(scenario()).run()
    assert report.rss_mb is not None
    assert 5 < report.rss_mb < 2_000
    assert f"{report.rss_mb:,.0f} MB" in report.render()


def test_aborting_names_the_location_of_every_message() -> None:
    small = scenario(rate=1e9, seconds=10)
    router = Router(small, plan_for(small, "threads"))
    router.start()
    until(lambda: router.delivered > 1_000)
    router.abort()
    report = router.report
    assert report.produced == report.delivered + report.undelivered
    assert sum(at.count for at in report.undelivered_at) == report.undelivered


def test_a_second_start_is_refused() -> None:
    router = Router(scenario())
    router.run()
    with pytest.raises(RefusedError, match="runs once"):
        router.start()


def test_a_report_before_the_start_is_refused() -> None:
    with pytest.raises(RefusedError, match="not started"):
        _ = Router(scenario()).report


def test_a_report_is_made_once() -> None:
    router = Router(scenario())
    assert router.run() is router.report


def test_a_plan_of_another_scenario_is_refused() -> None:
    with pytest.raises(RefusedError, match="made for another scenario"):
        Router(scenario(producers=3), plan_for(scenario(producers=2), "one worker"))


@pytest.mark.parametrize("kind", ["processors", "strategies"])
def test_a_handler_without_a_component_is_refused(kind: str) -> None:
    with pytest.raises(RefusedError, match=r"there is no .* 9; the scenario has 0 to"):
        Router(scenario(), **{kind: {9: each(print)}})  # type: ignore[arg-type]


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(RefusedError, match="sample is 0"):
        Options(sample=0)


def test_an_unreferenced_router_ends_its_threads() -> None:
    seen: list[int] = []
    router = Router(scenario(rate=1_000, seconds=60), strategies={0: lambda _: seen.append(1)})
    router.start()
    until(lambda: len(seen) > 5)
    gone = weakref.ref(router)
    del router
    gc.collect()
    assert gone() is None
    count = len(seen)
    assert not until_changes(seen, count)


def until_changes(seen: list[int], count: int) -> bool:
    """Return whether anything more arrives within a tenth of a second."""
    return threading.Event().wait(0.1) or len(seen) != count


def test_an_ended_router_that_its_strategy_refers_to_is_freed() -> None:
    class Bot:
        def __init__(self) -> None:
            self.router = Router(scenario(), strategies={0: self.on_tick})
            self.seen = 0

        def on_tick(self, _message: object) -> None:
            self.seen += 1

    bot = Bot()
    bot.router.run()
    assert bot.seen > 0
    gone = weakref.ref(bot)
    del bot
    gc.collect()
    assert gone() is None


def test_leaving_a_with_block_delivers_what_was_sent() -> None:
    small = scenario(rate=1_000, seconds=60)
    with Router(small) as router:
        until(lambda: router.delivered > 10)
    assert router.report.verdict == "PASSED"


def test_an_error_in_a_with_block_ends_the_run_at_once() -> None:
    gate = threading.Event()
    small = scenario(rate=1e6, seconds=60)
    router = Router(small, strategies={0: lambda _: gate.wait(1.0)})
    with pytest.raises(KeyError), router:
        raise KeyError
    gate.set()
    assert router.report.seconds < 10
