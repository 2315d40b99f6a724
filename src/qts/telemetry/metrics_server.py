"""`/metrics` on the loopback interface, served by a dedicated thread, and host metrics.

Scrapes do not block an event loop. Free disk and memory are read on each scrape.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from qts.telemetry.metrics import CONTENT_TYPE, gauge, render_metrics

HOST = "127.0.0.1"
PATH = "/metrics"
_REQUEST_TIMEOUT_S = 10.0


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server_version = "qts"
    sys_version = ""

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == PATH
        body = render_metrics() if found else b"not found; only /metrics is served\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - signature of the base class
        """Suppress the access log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect during a response."""


@contextmanager
def serve_metrics(port: int) -> Iterator[int]:
    """Serve during the block; yield the port (0: any free one). Raise OSError if it is in use."""
    with _Server((HOST, port), _Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.1,), name="qts-metrics", daemon=True
        )
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


_MEMORY = Path("/proc/meminfo")


def export_host_metrics(home: Path) -> None:
    """Export the free share of the disk that contains `home`, and of the memory."""
    gauge(
        "qts_disk_free_ratio", "Free share of the disk of the home directory, 0 to 1."
    ).set_function(lambda: _disk(home))
    gauge("qts_memory_free_ratio", "Available share of the memory, 0 to 1.").set_function(
        memory_free
    )


def memory_free(meminfo: Path = _MEMORY) -> float:
    """Return the available share of the memory; 1 where the system does not report it."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available, total = (int(rows[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError, IndexError):
        return 1.0
    return available / total if total else 1.0


def _disk(home: Path) -> float:
    try:
        usage = shutil.disk_usage(home)
    except OSError:
        return 0.0
    return usage.free / usage.total
