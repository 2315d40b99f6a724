"""`/metrics` on the loopback: on a thread of its own, so that a scrape holds no loop up.

How much of the machine is left: disk and memory, read when somebody asks.
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
_QUIET_S = 10.0  # a client that says nothing is cut


class _Handler(BaseHTTPRequestHandler):
    timeout = _QUIET_S
    server_version = "qts"
    sys_version = ""

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == PATH
        body = render_metrics() if found else b"there is only /metrics\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own word
        """A scrape every few seconds is no news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is no news either."""


@contextmanager
def serve_metrics(port: int) -> Iterator[int]:
    """Serve while the block lasts; answers the port (0 takes a free one). OSError: it is taken."""
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
    """Export the free part of the disk that holds `home`, and of the memory."""
    gauge("qts_disk_free_ratio", "Free part of the disk of the home, 0 to 1.").set_function(
        lambda: _disk(home)
    )
    gauge("qts_memory_free_ratio", "Part of the memory that can be had, 0 to 1.").set_function(
        memory_free
    )


def memory_free(meminfo: Path = _MEMORY) -> float:
    """1 where the system does not tell."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        have, all_of_it = (int(rows[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError, IndexError):
        return 1.0
    return have / all_of_it if all_of_it else 1.0


def _disk(home: Path) -> float:
    try:
        usage = shutil.disk_usage(home)
    except OSError:
        return 0.0
    return usage.free / usage.total
