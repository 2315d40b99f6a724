"""Log lines: one chain for QTS loggers and those of other libraries, and a rate limit.

    logger(name) ────────────┐
    logging.getLogger(…) ────┼─▶ ids ─▶ time, level ─▶ traceback ─▶ redaction ─▶ JSON or console
    uncaught errors ─────────┘

A line that cannot be written is counted and dropped: logging never stops a trading thread. On hot
paths lines are limited by a key; what is suppressed is counted.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from qts.telemetry.config import TelemetryConfig
from qts.telemetry.context import add_ids, redact_event

MAX_KEYS = 4096  # bounds memory if a caller uses a key per order


class RotatingFile(io.TextIOBase):
    """Text stream that rotates its file; not thread-safe."""

    encoding = "utf-8"

    def __init__(self, path: Path, limit_bytes: int, keep: int) -> None:
        super().__init__()
        self._path = path
        self._limit = limit_bytes
        self._keep = keep
        self._file: TextIO = self._open()
        self._size = self._file.tell()

    def write(self, text: str, /) -> int:
        length = len(text.encode())
        if self._size and self._size + length > self._limit:
            self._rotate()
        self._size += length
        return self._file.write(text)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        if self._keep:
            self._path.replace(self._numbered(1))
        else:
            self._path.unlink()
        self._file = self._open()
        self._size = 0

    def _open(self) -> TextIO:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t",
    10: "\\n",
}

_ISO: dict[str, Any] = {"fmt": "iso", "utc": True}
_CLOCK: dict[str, Any] = {"fmt": "%H:%M:%S", "utc": False}  # on a terminal


class _Lines:
    """Thread-safe writer of whole lines to a stream."""

    def __init__(self, stream: TextIO | RotatingFile | None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._held: list[str] | None = None
        self.dropped = 0

    @property
    def stream(self) -> TextIO | RotatingFile:
        return self._stream or sys.stderr

    def msg(self, line: str) -> None:
        with self._lock:
            if self._held is None:
                self._try_write(line)
            else:
                self._held.append(line)

    def urgent(self, line: str) -> None:
        self.release()
        self.msg(line)

    def hold(self) -> None:
        with self._lock:
            if self._held is None and self.stream.isatty():
                self._held = []

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held or (), None
            for line in held:
                self._try_write(line)

    def _try_write(self, line: str) -> None:
        try:
            self._write(line + "\n")
        except (OSError, ValueError):  # reader gone or stream closed
            self.dropped += 1

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            encoding = self.stream.encoding or "ascii"
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stream.flush()


class _Named:
    """Named sink at the end of the chain; writes lines of every level."""

    def __init__(self, name: str = "qts") -> None:
        self.name = name

    def __getattr__(self, level: str) -> Callable[[str], None]:
        return _lines.urgent if level in ("error", "critical") else _lines.msg


class _Foreign(logging.Handler):
    """Handler that sends the records of the standard library's logging through the chain."""

    def __init__(self, chain: list[Processor], lines: _Lines) -> None:
        super().__init__()
        self._chain = chain
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event: Any = {"event": record.getMessage(), "logger": record.name}
            if record.exc_info and record.exc_info[0]:
                event["exc_info"] = record.exc_info
            for processor in self._chain:
                event = processor(None, record.levelname.lower(), event)
            write = self._lines.urgent if record.levelno >= logging.ERROR else self._lines.msg
            write(event)
        except Exception:  # noqa: BLE001 - handleError is how logging reports a bad record
            self.handleError(record)


_lines = _Lines(None)
_handler: logging.Handler | None = None
_file: RotatingFile | None = None
_hooks: tuple[Any, Any] | None = None


def configure(config: TelemetryConfig, stream: TextIO | None = None) -> None:
    """Write logs to `stream`, else where the settings say; may be called repeatedly."""
    global _file, _handler, _lines
    restore()
    if stream is None and config.log_file is not None:
        limit = config.log_file_mb * 1024 * 1024
        _file = RotatingFile(config.log_file, limit, config.log_files)
    _lines = _Lines(_file or stream)
    chain = _chain(config, _lines.stream)
    level = getattr(logging, config.log_level.upper())
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Named,
        cache_logger_on_first_use=False,  # loggers made at import time follow a later configure
    )
    _handler = _Foreign(chain, _lines)
    root = logging.getLogger()
    root.addHandler(_handler)
    root.setLevel(level)
    _report_uncaught()


def logger(name: str) -> FilteringBoundLogger:
    """Return a logger of this name; may be called before `configure`."""
    if not structlog.is_configured():
        structlog.configure(
            processors=_chain(TelemetryConfig(), sys.stderr),
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=_Named,
        )
    return cast(FilteringBoundLogger, structlog.get_logger(name))


def lines_dropped() -> int:
    """Return how many lines could not be written since the last `configure`."""
    return _lines.dropped


def hold_lines() -> None:
    """Hold lines for a terminal back until `release_lines`, `restore` or a line of level error."""
    _lines.hold()


def release_lines() -> None:
    """Write the lines that were held back, and every later one at once."""
    _lines.release()


def restore() -> None:
    """Remove the handler and hooks; loggers then write to standard error."""
    global _file, _handler, _hooks, _lines
    _lines.release()
    _lines = _Lines(None)
    if _file is not None:
        _file.close()
        _file = None
    if _handler is not None:
        logging.getLogger().removeHandler(_handler)
        _handler = None
    if _hooks is not None:
        sys.excepthook, threading.excepthook = _hooks
        _hooks = None


def _chain(config: TelemetryConfig, stream: TextIO | RotatingFile) -> list[Processor]:
    terminal = stream.isatty()
    console = config.log_format == "console" or (config.log_format == "auto" and terminal)
    colours = terminal and "NO_COLOR" not in os.environ
    last: list[Processor] = [_as_json]
    if console:
        # The default formatter prints local variables, secrets included.
        plain = structlog.dev.plain_traceback
        last = [
            _escape_control,
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain),
        ]
    return [
        add_ids,
        _add_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(**_CLOCK if console and terminal else _ISO),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact_event,
        *last,
    ]


def _add_name(logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    if isinstance(logger, _Named):
        event["logger"] = logger.name
    return event


def _as_json(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    first = {key: event.pop(key, None) for key in ("timestamp", "level", "logger", "event")}
    return json.dumps({**first, **event}, ensure_ascii=False, allow_nan=False)


def _escape_control(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Escape control characters, so that a venue's text cannot forge a line on a terminal."""
    for key, value in event.items():
        if isinstance(value, str) and key not in ("exception", "stack"):
            event[key] = value.translate(_CONTROL)
    return event


def _report_uncaught() -> None:
    global _hooks
    _hooks = (sys.excepthook, threading.excepthook)
    log = logger("uncaught")

    def report(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log.critical("uncaught error", exc_info=(kind, error or kind(), trace))

    def in_main(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            return
        report(kind, error, trace)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, SystemExit):
            report(args.exc_type, args.exc_value, args.exc_traceback)

    hook: Callable[..., None] = in_thread
    sys.excepthook, threading.excepthook = in_main, hook


class LogThrottle:
    """At most one log line per key and period; thread-safe."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._lock = threading.Lock()
        self._keys: dict[Hashable, tuple[int, int]] = {}  # key -> (next line at ns, suppressed)

    def every(self, seconds: float, key: Hashable) -> dict[str, int]:
        """Return `{"suppressed": n}` when this key may log, else an empty dict.

        >>> if due := every(10, "ring full"):
        ...     log.warning("ring full", **due)
        """
        now_ns = self._monotonic_ns()
        with self._lock:
            next_at_ns, suppressed = self._keys.get(key, (now_ns, 0))
            if now_ns < next_at_ns:
                self._keys[key] = (next_at_ns, suppressed + 1)
                return {}
            self._keys.pop(key, None)  # keeps the dict ordered by last line, oldest first
            if len(self._keys) >= MAX_KEYS:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = (now_ns + round(seconds * 1e9), 0)
            return {"suppressed": suppressed}

    def take_suppressed(self) -> dict[Hashable, int]:
        """Return the suppressed lines per key that no line has reported, and clear all keys."""
        with self._lock:
            keys, self._keys = self._keys, {}
        return {key: suppressed for key, (_, suppressed) in keys.items() if suppressed}


_shared = LogThrottle()
log_every = _shared.every
take_suppressed = _shared.take_suppressed
