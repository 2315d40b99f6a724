"""Two processes and a real NATS: normal operation, and the death of each of the three."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from qts.domain import Secret, UnreachableError
from qts.embedded import Home, NatsServer
from qts.router import (
    EdgeConfig,
    MessageHandler,
    RouterReport,
    Scenario,
    Sink,
    Source,
    batch,
    load_scenario,
)
from tests.embedded import clients

SINK = Path(__file__).parents[2] / "examples" / "distributed" / "sink.py"
QTS = "import sys; from qts.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"
DELIVERED = re.compile(r"delivered [1-9]")
HANDLED = np.dtype([("producer", "u1"), ("type", "u1"), ("sequence", "<u8")])


def until(condition: Callable[[], bool]) -> bool:
    return clients.until(condition, seconds=30)


def scenario(rate: float = 20_000, strategy_ns: int = 0) -> Scenario:
    """Longer than any test: a source that is stopped has sent something on the slowest machine."""
    base = load_scenario("baseline")
    busy = {f"strategy_{number}": strategy_ns for number in range(3)}
    return msgspec.structs.replace(
        base,
        scenario="edge",
        duration_secs=60,
        producers=msgspec.structs.replace(base.producers, count=2, messages_per_sec=rate),
        strategies=msgspec.structs.replace(base.strategies, processing_times_ns=busy),
    )


class Halves:
    """Processes of one run, each with its report."""

    def __init__(self, url: Secret, place: Path) -> None:
        self.url, self.place = url, place
        self.record = place / "handled.bin"
        self.processes: list[subprocess.Popen[str]] = []
        self.scenario = place / "edge.json"
        self.scenario.write_bytes(msgspec.json.encode(scenario()))

    def start(self, *command: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "QTS_NATS_URL": self.url.reveal()}
        self.processes.append(
            subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        return self.processes[-1]

    def half(self, role: str, *more: str) -> subprocess.Popen[str]:
        """The command itself; its report goes to a file of the role's name."""
        report = str(self.place / f"{role}.json")
        scenario = str(self.scenario)
        return self.start(
            "-m", "qts", "distributed", role, scenario, "--run", "r", "--json", report, *more
        )

    def recording_sink(self, *more: str) -> subprocess.Popen[str]:
        record, scenario = str(self.record), str(self.scenario)
        return self.start(str(SINK), "--run", "r", "--record", record, scenario, *more)

    def report(self, role: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.place / f"{role}.json").read_text())
        return report

    def has_recorded(self, messages: int) -> bool:
        size = self.record.stat().st_size if self.record.exists() else 0
        return size >= messages * HANDLED.itemsize

    def has_confirmed(self) -> bool:
        """By the server: the stream of the run begins behind its first batch."""
        command = [sys.executable, "-c", FIRST, self.url.reveal(), "QTS_ROUTE_r"]
        output = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(output.stdout) > 1

    def check_record(self) -> None:
        """Every message of the source was handled once, and in order."""
        handled = np.fromfile(self.record, HANDLED)
        assert len(handled) == self.report("source")["produced"]
        streams = handled["producer"].astype(int) * 8 + handled["type"]
        for stream in np.unique(streams):
            sequences = handled["sequence"][streams == stream].astype(np.int64)
            assert (np.diff(sequences) > 0).all()


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(Home.at(tmp_path_factory.mktemp("nats"))) as running:
        yield running


@pytest.fixture
def halves(nats: NatsServer, tmp_path: Path) -> Iterator[Halves]:
    running = Halves(nats.url, tmp_path)
    yield running
    for process in running.processes:
        process.kill()
        process.communicate()
    subprocess.run(
        [sys.executable, "-c", FORGET, nats.url.reveal()], check=True, capture_output=True
    )


FIRST = """
import asyncio, sys, nats
async def first():
    link = await nats.connect(sys.argv[1])
    print((await link.jetstream().stream_info(sys.argv[2])).state.first_seq)
    await link.close()
asyncio.run(first())
"""
FORGET = """
import asyncio, sys, nats
async def forget():
    link = await nats.connect(sys.argv[1])
    for stream in await link.jetstream().streams_info():
        await link.jetstream().delete_stream(stream.config.name)
    await link.close()
asyncio.run(forget())
"""


def kill(nats: NatsServer) -> None:
    assert nats._process
    nats._process.kill()
    nats._process.wait()


def stop(source: subprocess.Popen[str]) -> None:
    """The first signal: it sends no more, and passes once the sink has confirmed the rest."""
    source.send_signal(signal.SIGINT)
    ended(source, 0)


def ended(process: subprocess.Popen[str], code: int, seconds: float = 30.0) -> str:
    """Return the output on both streams."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == code, out + err
    return out + err


def test_everything_arrives_in_order(halves: Halves) -> None:
    sink, source = halves.half("sink"), halves.half("source")
    assert sink.stdout
    assert any(DELIVERED.search(line) for line in sink.stdout)
    stop(source)
    ended(sink, 0)
    sent, got = halves.report("source"), halves.report("sink")
    assert sent["verdict"] == got["verdict"] == "PASSED"
    assert sent["produced"] == sent["delivered"] == got["produced"] == got["delivered"] > 0
    assert got["gaps"] == got["violations"] == got["undelivered"] == 0
    assert sent["per_strategy"] == got["per_strategy"]


def test_killed_sink_costs_nothing_once_another_is_started(halves: Halves) -> None:
    source, first = halves.half("source"), halves.recording_sink()
    assert until(lambda: halves.has_recorded(2_000))
    first.send_signal(signal.SIGKILL)
    first.wait()
    recorded = halves.record.stat().st_size // HANDLED.itemsize
    second = halves.recording_sink()
    assert until(lambda: halves.has_recorded(recorded + 2_000))
    stop(source)
    output = ended(second, 0)
    assert "were delivered by an earlier sink" in output
    assert output.rstrip().endswith("PASSED")
    halves.check_record()
    assert halves.report("source")["verdict"] == "PASSED"


@pytest.mark.soak
def test_source_of_a_dead_sink_reports_what_is_left_and_a_later_sink_receives_it(
    halves: Halves,
) -> None:
    source, sink = halves.half("source", "--patience", "2s"), halves.recording_sink()
    assert until(lambda: halves.has_recorded(2_000))
    assert until(halves.has_confirmed)
    sink.kill()
    source.send_signal(signal.SIGINT)
    output = ended(source, 1)
    report = halves.report("source")
    assert report["verdict"] == "FAILED"
    assert report["delivered"] > 0
    assert report["produced"] == report["delivered"] + report["undelivered"]
    waits = {"place": "stream QTS_ROUTE_r, not confirmed", "count": report["undelivered"]}
    assert report["undelivered_at"] == [waits]
    assert "no sink of run r was active for 2 s" in output
    assert ended(halves.recording_sink(), 0).rstrip().endswith("PASSED")
    halves.check_record()


@pytest.mark.soak
def test_killed_server_that_restarts_with_its_data_loses_nothing(
    halves: Halves, nats: NatsServer
) -> None:
    source, sink = halves.half("source"), halves.recording_sink()
    assert until(lambda: halves.has_recorded(2_000))
    kill(nats)
    recorded = halves.record.stat().st_size // HANDLED.itemsize
    nats.start()
    assert until(lambda: halves.has_recorded(recorded + 20_000))
    stop(source)
    assert ended(sink, 0).rstrip().endswith("PASSED")
    halves.check_record()
    assert halves.report("source")["verdict"] == "PASSED"


@pytest.mark.soak
def test_sink_of_a_dead_source_delivers_what_came_and_fails(halves: Halves) -> None:
    source = halves.half("source")
    assert source.stdout
    assert "plan" in source.stdout.readline()  # from here on it is as quick as the sink
    sink = halves.recording_sink("--patience", "2")
    assert until(lambda: halves.has_recorded(2_000))
    source.kill()
    output = ended(sink, 1)
    assert "the source of run r was silent for 2 s" in output
    handled = np.fromfile(halves.record, HANDLED)
    assert re.search(rf"delivered +{len(handled):,}\n +undelivered +0\n", output)


@pytest.mark.parametrize("role", ["source", "sink"])
def test_unreachable_server_is_one_line_and_exit_code_1(
    role: str, nats: NatsServer, tmp_path: Path
) -> None:
    halves = Halves(Secret("nats://u:canary@127.0.0.1:9"), tmp_path)
    output = ended(halves.half(role), 1)
    lines = [line for line in output.splitlines() if line.startswith("qts:")]
    assert lines == ["qts: NATS at 127.0.0.1:9 does not answer: Connection refused"]
    assert "Traceback" not in output
    assert "canary" not in output


def test_wrong_password_is_refused_without_showing_it(nats: NatsServer, tmp_path: Path) -> None:
    halves = Halves(Secret(f"nats://qts:canary@127.0.0.1:{nats.port}"), tmp_path)
    output = ended(halves.half("source"), 2)
    assert f"qts: NATS at 127.0.0.1:{nats.port} refuses the user, password or token" in output
    assert "canary" not in output


def test_missing_client_is_one_line(nats: NatsServer, tmp_path: Path) -> None:
    halves = Halves(nats.url, tmp_path)
    without = f"import sys\nsys.modules['nats'] = None\n{QTS}"
    command = ["distributed", "sink", str(halves.scenario), "--run", "r"]
    output = ended(halves.start("-c", without, *command), 1)
    assert 'pip install "qts[nats]"' in output.splitlines()[-1]


def test_sink_without_a_source_times_out(halves: Halves) -> None:
    output = ended(halves.half("sink", "--patience", "500ms"), 1)
    assert "no source of run r appeared" in output


# ---- both halves in this process: what a report cannot show ----


def edge(nats: NatsServer, run: str, **changes: Any) -> EdgeConfig:
    small: dict[str, Any] = {"batch": 256, "in_flight": 2, "held": 4, "unconfirmed": 4}
    return EdgeConfig(**{"url": nats.url, "run": run, "timeout_s": 10.0, **small, **changes})


def finished(half: Source | Sink, seconds: float = 30.0) -> RouterReport:
    assert half.wait(seconds)
    return half.report


def test_second_source_of_a_run_is_refused(nats: NatsServer) -> None:
    first = Source(scenario(), edge(nats, "twice"))
    first.start()
    try:
        with pytest.raises(Exception, match="run twice exists in NATS at") as refusal:
            Source(scenario(), edge(nats, "twice")).start()
        assert getattr(refusal.value, "exit_code", None) == 2
    finally:
        first.abort()
        assert first.report.verdict == "FAILED"


def test_without_a_sink_memory_is_bounded_and_producers_wait(nats: NatsServer) -> None:
    source = Source(scenario(rate=500_000), edge(nats, "full", timeout_s=0.5))
    source.start()
    report = finished(source)
    counts = source.sender.counts
    assert 0 < counts.in_stream <= 4 * 256
    assert 0 < counts.unstored <= 5 * 256
    assert report.produced < report.offered
    assert report.delivered == 0
    assert report.undelivered == report.produced
    assert sum(place.count for place in report.undelivered_at) == report.undelivered
    assert any("no sink of run full was active" in line for line in report.failures)


def test_server_that_lost_stored_batches_gets_them_again(tmp_path: Path) -> None:
    """As after a power failure: the disk lacks confirmed writes."""
    with NatsServer(Home.at(tmp_path / "home")) as nats:
        source = Source(scenario(), edge(nats, "lost", held=200))
        source.start()
        assert until(lambda: source.sender.stored >= 2)
        kill(nats)
        subprocess.run(["/bin/cp", "-a", nats.store, tmp_path / "old"], check=True)
        nats.start()
        assert until(lambda: source.sender.stored >= 30)
        kill(nats)
        nats.store.rename(tmp_path / "new")
        (tmp_path / "old").rename(nats.store)
        nats.start()
        source.stop()
        sink = Sink(scenario(), edge(nats, "lost"))
        sink.start()
        sent, got = finished(source), finished(sink)
    assert sent.verdict == got.verdict == "PASSED"
    assert got.delivered == sent.produced > 5_000


def test_server_that_stays_down_ends_both_halves(tmp_path: Path) -> None:
    with NatsServer(Home.at(tmp_path / "home")) as nats:
        away = edge(nats, "away", timeout_s=1.5)
        source, sink = Source(scenario(), away), Sink(scenario(), away)
        source.start()
        sink.start()
        assert until(lambda: sink.router.delivered > 1_000)
        kill(nats)
        sent, got = finished(source), finished(sink)
    for report in (sent, got):
        assert report.verdict == "FAILED"
        assert any("has been unreachable for 1.5 s" in line for line in report.failures)
    assert sent.produced == sent.delivered + sent.undelivered
    assert sum(place.count for place in sent.undelivered_at) == sent.undelivered


def test_slow_strategies_slow_the_source_and_lose_nothing(nats: NatsServer) -> None:
    slow = scenario(rate=200_000, strategy_ns=50_000)  # a tenth of what is offered, at most
    sink, source = Sink(slow, edge(nats, "slow")), Source(slow, edge(nats, "slow"))
    sink.start()
    source.start()
    assert until(lambda: sink.router.delivered > 10_000)
    under_way = source.snapshot()["produced"] - sink.router.delivered
    source.stop()
    sent, got = finished(source), finished(sink)
    assert under_way < 30_000  # rings and batches; as many are offered in a tenth of a second
    assert sent.verdict == got.verdict == "PASSED"
    assert got.delivered == sent.produced


def test_second_sink_takes_over_from_the_first(nats: NatsServer) -> None:
    long = scenario(rate=5_000)
    source, first = Source(long, edge(nats, "over")), Sink(long, edge(nats, "over"))
    first.start()
    source.start()
    assert until(lambda: first.router.delivered > 100)
    second = Sink(long, edge(nats, "over"))
    second.start()
    assert "another sink of run over has taken over" in finished(first).failures
    source.stop()
    assert finished(source).verdict == "PASSED"
    report = finished(second)
    assert report.verdict == "PASSED"
    assert report.produced == source.report.produced


class RecordingStrategy:
    """Strategy that records its messages, and may fail or block."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.keys: list[tuple[int, int, int]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self._fails_at = fails_at

    def handle(self, messages: Any) -> None:
        assert self.may_go.wait(30)
        if self._fails_at is not None and messages["sequence_number"].max() >= self._fails_at:
            raise ValueError("enough")
        names = ["producer_id", "msg_type", "sequence_number"]
        self.keys.extend(messages[names].tolist())

    @property
    def strategies(self) -> dict[int, MessageHandler]:
        return dict.fromkeys(range(3), batch(self.handle))


def test_failing_strategy_leaves_its_messages_for_the_next_sink(nats: NatsServer) -> None:
    some, seen = scenario(), [RecordingStrategy(fails_at=1_000), RecordingStrategy()]
    source = Source(some, edge(nats, "fails", held=100))
    sinks = [Sink(some, edge(nats, "fails"), strategies=one.strategies) for one in seen]
    sinks[0].start()
    source.start()
    report = finished(sinks[0])
    assert report.verdict == "FAILED"
    assert any("ValueError: enough" in line for line in report.failures)
    sinks[1].start()
    source.stop()
    assert finished(source).verdict == finished(sinks[1]).verdict == "PASSED"
    handled = {*seen[0].keys, *seen[1].keys}
    assert len(handled) == source.report.produced == sinks[1].report.delivered


def test_redelivered_batch_is_not_handled_again(nats: NatsServer) -> None:
    some, seen = scenario(rate=20), RecordingStrategy()  # few enough to wait in the rings
    seen.may_go.clear()
    again = edge(nats, "again", held=1000, unconfirmed=1000)
    source, sink = Source(some, again), Sink(some, again, strategies=seen.strategies)
    sink.start()
    source.start()
    assert until(lambda: sink.receiver.pushed > 0)
    kill(nats)
    nats.start()
    assert until(lambda: sink.receiver.joins >= 2)
    seen.may_go.set()
    source.stop()
    assert finished(source).verdict == finished(sink).verdict == "PASSED"
    assert len(seen.keys) == len(set(seen.keys)) == source.report.produced


def test_stopped_sink_confirms_what_it_delivered(nats: NatsServer) -> None:
    source = Source(scenario(), edge(nats, "stopped", held=100))
    seen = RecordingStrategy()
    stopped = edge(nats, "stopped")
    sinks = [Sink(scenario(), stopped, strategies=seen.strategies) for _ in range(2)]
    sinks[0].start()
    source.start()
    assert until(lambda: len(seen.keys) > 1_000)
    sinks[0].stop()
    first = finished(sinks[0])
    assert "stopped before the source had ended the run" in first.failures
    assert first.undelivered == 0
    sinks[1].start()
    source.stop()
    assert finished(source).verdict == "PASSED"
    assert finished(sinks[1]).verdict == "PASSED"
    assert (
        len(seen.keys) == len(set(seen.keys)) == source.report.produced
    )  # nothing twice, without any record


def test_sender_of_a_dead_port_is_unreachable(nats: NatsServer) -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9 does not answer"):
        Source(scenario(), edge(nats, "r", url=Secret("nats://127.0.0.1:9"))).start()
