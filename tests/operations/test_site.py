"""The documentation site: every page is built, every link works, no other host is used."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

import qts
import qts.testing
from qts.cli.main import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_ADDRESS = re.compile(r'(?:href|src)="([^"]+)"')


REFERENCE = ("qts", "qts.client", "qts.testing")


def build(docs: Path, out: Path, *more: str) -> tuple[int, str]:
    script = ROOT / "scripts" / "docs.py"
    command = [sys.executable, str(script), "--docs", str(docs), "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    code, stderr = build(DOCS, out)
    assert code == 0, stderr
    return out


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DOCS, tmp_path / "docs"))


def test_every_document_is_a_page(site: Path) -> None:
    files = [path.relative_to(DOCS) for path in DOCS.rglob("*.md")]
    expected = {path.with_suffix(".html") for path in files if path.parent != Path("site")}
    renamed = {path.with_name(path.name.replace("README", "index")) for path in expected}
    assert renamed | {Path("reference") / f"{name}.html" for name in REFERENCE} == {
        path.relative_to(site) for path in site.rglob("*.html")
    }


def test_every_address_of_a_page_is_there_and_none_is_elsewhere(site: Path) -> None:
    texts = {page.resolve(): page.read_text("utf-8") for page in site.rglob("*.html")}
    names = {page: set(re.findall(r' id="([^"]+)"', text)) for page, text in texts.items()}
    for page, text in texts.items():
        for address in _ADDRESS.findall(text):
            path, _, fragment = address.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), f"{page.name}: {address}"
            if fragment:
                assert unquote(fragment) in names[target], f"{page.name}: {address}"
    assert "http" not in (site / "site.css").read_text() + (site / "site.js").read_text()


def test_texts_that_name_each_other_are_linked(site: Path) -> None:
    text = (site / "operations.html").read_text("utf-8")
    assert '<a href="brokers.html"><code>docs/brokers.md</code></a>' in text


def test_code_has_colours_and_tables_are_tables(site: Path) -> None:
    text = (site / "tutorial.html").read_text("utf-8")
    assert '<span class="k">class</span>' in text
    assert "<td>OrderUnknown</td>" in (site / "operations.html").read_text("utf-8")


def test_the_search_knows_every_section_and_code_has_colours_in_the_dark(site: Path) -> None:
    words = (site / "words.js").read_text("utf-8")
    sections = json.loads(words.removeprefix("const SECTIONS = ").rstrip(";\n"))
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {each["at"].partition("#")[0] for each in sections} == pages
    (kill,) = (each for each in sections if each["at"] == "risk.html#kill-switch")
    assert (kill["title"], kill["heading"]) == ("Risk", "Kill switch")
    assert "qts kill on" in kill["text"]
    dark = (site / "site.css").read_text("utf-8").split("@media (prefers-color-scheme: dark)")
    assert "pre code .k { color:" in dark[-1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[gone](gone.md)", "gone.md: no such file"),
        ("[gone](feed.md#nowhere)", "feed.md#nowhere: no such heading"),
        ("![gone](images/gone.png)", "images/gone.png: no such file"),
        ("[out](../README.md)", "points out of docs/"),
        ("see `docs/gone.md`", "gone.md: no such file"),
    ],
)
def test_a_link_to_nothing_fails_the_build(draft: Path, line: str, why: str) -> None:
    page = draft / "risk.md"
    page.write_text(f"{page.read_text('utf-8')}\n{line}\n", "utf-8")
    code, stderr = build(draft, draft.parent / "site")
    assert code == 1
    assert stderr.startswith("docs/risk.md: ")
    assert why in stderr
    assert not (draft.parent / "site").exists()


def test_a_korean_page_is_marked_as_korean_and_found_by_korean_words(site: Path) -> None:
    assert '<html lang="en">' in (site / "live.html").read_text("utf-8")
    text = (site / "live.ko.html").read_text("utf-8")
    assert '<html lang="ko">' in text
    assert '<a href="live.html">English</a>' in text
    assert '<a href="live.ko.html" aria-current="page">' in text  # in the navigation
    words = (site / "words.js").read_text("utf-8")
    sections = json.loads(words.removeprefix("const SECTIONS = ").rstrip(";\n"))
    found = {each["at"].partition("#")[0] for each in sections if "킬 스위치" in each["text"]}
    assert {"live.ko.html", "tutorial.ko.html"} <= found


def test_a_link_to_a_korean_heading_works(draft: Path) -> None:
    page = draft / "risk.md"
    link = "[변동성 돌파](tutorial.ko.md#6-변동성-돌파)"
    page.write_text(f"{page.read_text('utf-8')}\n{link}\n", "utf-8")
    assert build(draft, draft.parent / "site")[0] == 0


def test_a_translation_without_its_link_or_its_original_fails_the_build(draft: Path) -> None:
    page, index = draft / "live.md", draft / "README.md"
    page.write_text(page.read_text("utf-8").replace("[한국어](live.ko.md)", ""), "utf-8")
    (draft / "lost.ko.md").write_text("# 길 잃은 문서\n", "utf-8")
    row = "| read in Korean (한국어) | [lost](lost.ko.md), "
    listed = index.read_text("utf-8").replace("| read in Korean (한국어) | ", row)
    index.write_text(listed, "utf-8")
    code, stderr = build(draft, draft.parent / "site")
    assert (code, stderr.splitlines()) == (
        1,
        [
            "docs/live.md: has no link to docs/live.ko.md, the same page in another language",
            "docs/lost.ko.md: translates docs/lost.md, which does not exist",
        ],
    )


def test_a_document_that_is_not_listed_fails_the_build(draft: Path) -> None:
    (draft / "lost.md").write_text("# Lost\n")
    code, stderr = build(draft, draft.parent / "site")
    assert (code, stderr) == (1, "docs/lost.md: not listed in docs/README.md\n")


def readme_section(name: str) -> str:
    readme = (ROOT / "README.md").read_text("utf-8")
    return readme.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def code_of(page: Path) -> list[str]:
    """Return the blocks of code of a page as text."""
    blocks = re.findall(r"<pre><code[^>]*>(.*?)</code></pre>", page.read_text("utf-8"), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", block)) for block in blocks]


def test_the_first_page_has_the_commands_and_the_strategy_of_the_readme(site: Path) -> None:
    text = (site / "index.html").read_text("utf-8")
    assert '<img src="images/dashboard.png"' in text
    fence = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    install = fence.findall(readme_section("Quick start"))[0]
    assert len(install.splitlines()) == 2
    strategy = fence.findall(readme_section("A first strategy"))
    assert code_of(site / "index.html") == [install, *strategy]


def test_the_strategy_of_the_first_page_runs(site: Path, tmp_path: Path) -> None:
    _, strategy, commands = code_of(site / "index.html")
    file, report = tmp_path / "mine.py", tmp_path / "report.json"
    file.write_text(strategy)
    (line,) = re.findall(r"^\$ qts (backtest mine\.py:\w+ .*)$", commands, re.MULTILINE)
    words = line.replace("mine.py", str(file)).replace("200", "20").replace("3600", "600").split()
    command = typer.main.get_command(app)
    command.main([*words, "--json", str(report)], prog_name="qts", standalone_mode=False)
    assert json.loads(report.read_text())["strategy"] == "dip"


def test_the_reference_has_every_public_name(site: Path) -> None:
    for package, names in (
        ("qts", set(vars(qts)["__all__"]) - {"__version__"}),
        ("qts.client", {"Client", "RequestError", "StatusPage"}),
        ("qts.testing", set(vars(qts.testing)["__all__"])),
    ):
        text = (site / "reference" / f"{package}.html").read_text("utf-8")
        shown = {*re.findall(r'<h2 id="[^"]+"><code>(\w+)</code></h2>', text)}
        assert names <= shown, package
        assert package == "qts.client" or names == shown


def test_an_entry_has_its_signature_and_links_to_its_types(site: Path) -> None:
    text = (site / "reference" / "qts.html").read_text("utf-8")
    _, _, on_tick = text.partition('<h3 id="strategyon_tick">')
    tick, view = (f'<a href="qts.html#{name.lower()}">{name}</a>' for name in ("Tick", "View"))
    assert (
        f"def on_tick(tick: {tick}, view: {view}) -&gt; Iterable[Instruction]</code></pre>\n"
        "<p>Handle a tick of one of its symbols.</p>"
    ) in on_tick[:400]
    assert ">traded since the previous tick of the symbol</td>" in text  # the comment of a field
    assert ">interval of the timer, above 0</td>" in text  # of an Annotated one
    assert "class StepStrategy(params: P)  # a " in text
    suites = (site / "reference" / "qts.testing.html").read_text("utf-8")
    assert "<li>partial fills add up</li>" in suites
    assert "<li><code>venue</code>: The venue under test.</li>" in suites


def test_a_public_name_without_a_docstring_fails_the_build(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.js")
    source = Path(shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored))
    file = source / "qts" / "strategies" / "strategy.py"
    changed = file.read_text("utf-8").replace('"""Read-only snapshot of the portfolio."""', "")
    changed = changed.replace('"""Handle a tick of one of its symbols."""', "")
    file.write_text(changed, "utf-8")
    code, stderr = build(DOCS, tmp_path / "site", "--source", str(source))
    missing = (
        "step.py: StepStrategy.on_tick",
        "strategy.py: Strategy.on_tick",
        "strategy.py: View",
    )
    assert (code, stderr.splitlines()) == (
        1,
        [f"src/qts/strategies/{each} has no docstring; the reference shows it" for each in missing],
    )
    assert not (tmp_path / "site").exists()
