"""Files of the pages, compressed once and cached by browsers under a path that names their content.

The modules import each other by relative paths, so that one version in the path of the first of
them is in the path of all; a file that changes changes the version, and a browser loads it again.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from qts.dashboard.guard import MIN_COMPRESSED

_CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
_Handler = Callable[[web.Request], Awaitable[web.Response]]


class StaticFiles:
    """Handlers of the files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = [
            path.name for path in sorted(folder.iterdir()) if path.suffix in _CONTENT_TYPES
        ]
        digest = hashlib.sha256()
        for name in self._names:
            digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
        self.version = digest.hexdigest()[:16]

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/", self._handler("index.html"))
        router.add_get("/login", self._handler("login.html"))
        router.add_get("/worker.js", self._handler("worker.js"))  # its scope is every page
        for name in self._names:
            router.add_get(f"/page/{name}", self._handler(name))
            router.add_get(f"/page/{self.version}/{name}", self._handler(name, _IMMUTABLE))

    def _handler(self, name: str, headers: dict[str, str] | None = None) -> _Handler:
        path = self._folder / name
        content = path.read_bytes()
        if name == "index.html":
            content = content.replace(b'="/page/', f'="/page/{self.version}/'.encode())
        compressed = gzip.compress(content, mtime=0) if len(content) > MIN_COMPRESSED else None
        content_type = _CONTENT_TYPES.get(path.suffix, "text/html")

        async def handle(request: web.Request) -> web.Response:
            given = {"Vary": "Accept-Encoding", **(headers or {})}
            body = content
            if compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
                given["Content-Encoding"] = "gzip"
                body = compressed
            return web.Response(
                body=body, content_type=content_type, charset="utf-8", headers=given
            )

        return handle
