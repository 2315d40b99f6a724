"""Log lines in console and JSON format."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from qts import telemetry
from qts.telemetry import TelemetryConfig
from tests.telemetry.log_lines import Lines


class Terminal(Lines):
    def isatty(self) -> bool:
        return True


def test_line_has_time_level_logger_and_event(lines: Lines) -> None:
    telemetry.logger("feed").warning("tick late", symbol="005930", late_ms=12.5)
    line = lines.only()
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert line.pop("timestamp")
    assert line == {
        "level": "warning",
        "logger": "feed",
        "event": "tick late",
        "symbol": "005930",
        "late_ms": 12.5,
    }


def test_timestamp_is_iso_utc(lines: Lines) -> None:
    telemetry.logger("test").info("now")
    stamp = lines.only()["timestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()) < 60


@pytest.mark.parametrize(
    ("level", "logged"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_lines_below_the_level_are_dropped(level: Any, logged: int) -> None:
    stream = Lines()
    telemetry.configure(TelemetryConfig(log_level=level), stream)
    for log in (telemetry.logger("ours"), logging.getLogger("theirs")):
        log.debug("x")
        log.info("x")
        log.warning("x")
        log.error("x")
    assert len(stream.parsed()) == 2 * logged


def test_ids_are_on_every_line_even_of_other_libraries(lines: Lines) -> None:
    with telemetry.context(traceId="t1", eventId="e1"):
        telemetry.logger("ours").info("x")
        logging.getLogger("theirs").info("x")
    telemetry.logger("ours").info("outside")
    first, second, outside = lines.parsed()
    assert (first["traceId"], first["eventId"]) == ("t1", "e1")
    assert (second["traceId"], second["eventId"], second["logger"]) == ("t1", "e1", "theirs")
    assert "traceId" not in outside


def test_logger_made_before_configure_follows_it() -> None:
    log = telemetry.logger("early")
    stream = Lines()
    telemetry.configure(TelemetryConfig(), stream)
    log.info("x")
    assert stream.only()["logger"] == "early"


def test_configuring_twice_writes_each_line_once(lines: Lines) -> None:
    again = Lines()
    telemetry.configure(TelemetryConfig(), again)
    logging.getLogger("theirs").info("x")
    assert again.only()
    assert not lines.getvalue()


def test_auto_is_console_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal, pipe = Terminal(), Lines()
    for stream in (terminal, pipe):
        telemetry.configure(TelemetryConfig(), stream)
        telemetry.logger("test").info("hello", price=71000)
    assert re.search(r"\[info +\] hello +\[test\] price=71000\n$", terminal.getvalue())
    assert pipe.only()["price"] == 71000


def test_no_color_is_respected_and_colour_is_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Lines()
    for stream in (coloured, plain):
        telemetry.configure(TelemetryConfig(log_format="console"), stream)
        telemetry.logger("test").info("hello")
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b" not in plain.getvalue()


def test_a_venues_text_cannot_forge_a_line_on_the_console() -> None:
    stream = Lines()
    telemetry.configure(TelemetryConfig(log_format="console"), stream)
    telemetry.logger("test").info("said: hi\nfake line \x1b[2J", answer="a\rb")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_values_that_json_does_not_know_are_written_as_text(lines: Lines) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    telemetry.logger("test").info(
        "x", nan=math.nan, at=moment, raw=b"\x00", many={1}, half="\udc80"
    )
    line = lines.only()
    assert (line["nan"], line["at"], line["many"]) == ("nan", "2026-01-02T00:00:00+00:00", [1])


def test_text_the_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    telemetry.configure(TelemetryConfig(), stream)
    telemetry.logger("test").info("삼성전자")
    assert json.loads(raw.getvalue())["event"] == "삼성전자"


def test_a_closed_stream_costs_the_line_not_the_caller(lines: Lines) -> None:
    lines.close()
    telemetry.logger("test").error("x")
    logging.getLogger("theirs").error("x")
    assert telemetry.lines_dropped() == 2


def test_lines_of_many_threads_do_not_mix(lines: Lines) -> None:
    def work() -> None:
        for number in range(50):
            telemetry.logger("test").info("x" * 200, number=number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(lines.parsed()) == 200


def test_thread_that_dies_is_logged_with_its_traceback(lines: Lines) -> None:
    def die() -> None:
        raise ValueError("lane broke, password=hunter22")

    thread = threading.Thread(target=die)
    thread.start()
    thread.join(10)
    line = lines.only()
    assert (line["level"], line["event"]) == ("critical", "uncaught error")
    assert "ValueError: lane broke, password=***" in line["exception"]


async def test_error_of_an_unawaited_task_is_logged(lines: Lines) -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "task failed", "exception": ValueError("token=abcdef")})
    line = lines.parsed()[-1]
    assert (line["logger"], line["level"]) == ("asyncio", "error")
    assert "token=***" in line["exception"]


def test_bad_format_of_another_library_does_not_raise(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("theirs").error("%d", "not a number")
    assert not lines.getvalue()


def test_shutdown_restores_the_hooks() -> None:
    before = (sys.excepthook, threading.excepthook, list(logging.getLogger().handlers))
    telemetry.configure(TelemetryConfig(), Lines())
    assert sys.excepthook is not before[0]
    telemetry.shutdown()
    telemetry.shutdown()
    assert (sys.excepthook, threading.excepthook, list(logging.getLogger().handlers)) == before


def test_uncaught_error_of_the_program_is_one_redacted_line() -> None:
    program = (
        "from qts import telemetry\n"
        "telemetry.configure(telemetry.TelemetryConfig())\n"
        "raise RuntimeError('redis://:hunter22@host')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    line = json.loads(done.stderr)
    assert line["level"] == "critical"
    assert "RuntimeError: redis://:***@host" in line["exception"]
    assert "hunter22" not in done.stderr


def test_before_configure_lines_go_to_standard_error_redacted() -> None:
    program = (
        "from qts import telemetry\n"
        "telemetry.logger('early').warning('x', password='hunter22')\n"
        "telemetry.logger('early').debug('quiet')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ""
    assert json.loads(done.stderr)["password"] == "***"
