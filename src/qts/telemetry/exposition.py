"""`/metrics` on the loopback: on a thread of its own, so that a scrape holds no loop up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from qts.telemetry.metrics import CONTENT_TYPE, render

HOST = "127.0.0.1"
PATH = "/metrics"
_QUIET_S = 10.0  # a client that says nothing is cut


class _Handler(BaseHTTPRequestHandler):
    timeout = _QUIET_S
    server_version = "qts"
    sys_version = ""

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == PATH
        body = render() if found else b"there is only /metrics\n"
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
def exposed(port: int) -> Iterator[int]:
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
