"""Files of the pages: compressed, cached under the name of their content, loaded when needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qts.dashboard.server import PAGE, StaticFiles
from tests.dashboard.conftest import Site
from tests.dashboard.test_pages import visit

_LOADED = """() => performance.getEntriesByType("resource")
  .filter((each) => each.name.includes("/page/"))
  .map((each) => [each.name.split("/").at(-1), each.transferSize])"""


async def test_files_are_compressed_and_cached_by_their_content(site: Site) -> None:
    async with site.connect() as client:
        async with client.client.get("/") as reply:
            text = await reply.text()
            assert reply.headers["Cache-Control"] == "no-store"
        (path,) = re.findall(r'src="(/page/\w{16}/app\.js)"', text)
        async with client.client.get(path) as reply:
            assert await reply.text() == (PAGE / "app.js").read_text("utf-8")
            assert reply.headers["Cache-Control"] == "private, max-age=31536000, immutable"
            assert reply.headers["Content-Encoding"] == "gzip"
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        async with client.client.get(path, headers={"Accept-Encoding": "identity"}) as reply:
            assert "Content-Encoding" not in reply.headers
            assert await reply.text() == (PAGE / "app.js").read_text("utf-8")
        assert await client.status(path.replace("/page/", "/page/0")) == 404
    async with site.connect(None) as stranger:
        assert await stranger.status(path) == 401


def test_the_version_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = StaticFiles(tmp_path).version
    assert StaticFiles(tmp_path).version == first
    (tmp_path / "a.js").write_text("2")
    assert StaticFiles(tmp_path).version != first


async def test_a_second_visit_loads_no_file_and_the_chart_is_loaded_when_shown(
    site: Site, browser: Any
) -> None:
    site.run()
    # In a context of its own, whose cache is empty.
    async with visit(browser, site.tokens.link(site.address), prepare=lambda _page: ()) as tab:
        await tab.wait_text("#top", "PAPER")
        first = dict(await tab.page.evaluate(_LOADED))
        assert "lightweight-charts.js" not in first
        assert 20_000 < sum(first.values()) < 60_000  # bytes over the line
        await tab.page.reload()
        await tab.wait_text("#top", "PAPER")
        again = dict(await tab.page.evaluate(_LOADED))
        assert again.keys() >= {"app.js", "style.css", "dom.js"}
        modules = {name: size for name, size in again.items() if not name.endswith(".svg")}
        assert set(modules.values()) == {0}, modules
