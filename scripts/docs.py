"""Build the documentation site: check every page of docs/ and write it as HTML.

A link to a missing page, heading or file, and a page that the table in docs/README.md does not
list, end the build with exit code 1 and one line each. The navigation has the order of the table.
`page.ko.md` is the Korean translation of `page.md`; the two link each other.
The first page is written from README.md, the reference from the docstrings of the public names; one
of them without a docstring ends the build, too.
Neither the build nor the site uses another host.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from string import Template
from urllib.parse import unquote, urlsplit

from docs_reference import PACKAGES, TITLE, Reference, path_of
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[1]
INDEX = "README.md"
_CODE_STYLES = {"light": "default", "dark": "github-dark"}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)\)")
_NAMED = re.compile(r"docs/([\w./-]+\.md)")  # a page named in inline code
_FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| (?!if you want)([^|]+) \| (.+) \|$", re.MULTILINE)


@dataclass
class Page:
    """One page: its tokens, headings (id to text) and links."""

    path: Path  # relative to docs/
    tokens: list[Token]
    headings: dict[str, str] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        name = "index.html" if self.path.name == INDEX else f"{self.path.stem}.html"
        return self.path.with_name(name)

    @property
    def language(self) -> str:
        return "ko" if self.path.stem.endswith(".ko") else "en"

    @property
    def title(self) -> str:
        return next(iter(self.headings.values()), self.path.stem)

    def sections(self) -> list[dict[str, str]]:
        """Return what the search knows: each heading with the text below it."""
        found: list[dict[str, str]] = []
        for before, token in pairwise(self.tokens):
            if before.type == "heading_open":
                name = str(before.attrGet("id"))
                place = self.out.as_posix() + (f"#{name}" if found else "")
                heading = self.headings[name]
                found.append({"title": self.title, "heading": heading, "at": place, "text": ""})
            elif found and token.type in ("inline", "fence", "html_block"):
                found[-1]["text"] += _text(token) + " "
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    options = parser.parse_args()
    reference = Reference(options.source)
    pages = read(options.docs, reference.pages)
    problems = [
        *reference.problems,
        *broken(options.docs, pages),
        *unlisted(options.docs, pages),
        *unlinked_translations(pages),
    ]
    for line in problems:
        sys.stderr.write(f"{line}\n")
    if problems:
        return 1
    write(options.docs, options.out, pages)
    sys.stdout.write(f"{len(pages)} pages in {options.out}; open {options.out / 'index.html'}\n")
    return 0


# --- reading --------------------------------------------------------------------------------------


def read(docs: Path, reference: dict[Path, str]) -> dict[Path, Page]:
    files = sorted(path for path in docs.rglob("*.md") if path.parent != docs / "site")
    texts = {path.relative_to(docs): path.read_text("utf-8") for path in files} | reference
    texts[Path(INDEX)] = _landing(docs, texts[Path(INDEX)])
    return {path: _page(path, text) for path, text in texts.items()}


def _landing(docs: Path, index: str) -> str:
    """Return the first page: parts of README.md, then the table of the pages."""
    readme = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    begin, *rest = re.split(r"^## ", readme, flags=re.MULTILINE)
    sections = {text.partition("\n")[0]: text.partition("\n")[2].strip() for text in rest}
    _, tagline, about, key, *_ = begin.split("\n\n")
    need, _, _ = sections["Quick start"].partition("\n\n")
    strategy = sections["A first strategy"]
    *_, last = _FENCE.finditer(strategy)
    after, _, _ = strategy[last.end() :].strip().partition("\n\n")
    return Template((docs / "site" / "landing.md").read_text("utf-8")).substitute(
        tagline=tagline,
        about=f"{about}\n\n{key}",
        need=need,
        install=_FENCE.findall(sections["Quick start"] + "\n")[0],
        strategy=f"{strategy[: last.end()]}\n{after}",
        pages=index.partition("\n")[2].strip(),
    )


def _page(path: Path, text: str) -> Page:
    tokens = _markdown().parse(text)
    page = Page(path, tokens)
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            name = _unique(_slug(inside.content), page.headings)
            token.attrSet("id", name)
            page.headings[name] = _plain(inside)
            page.levels[name] = int(token.tag[1])
    for child in _children(tokens):
        if child.type == "link_open":
            page.links.append(str(child.attrGet("href")))
            child.attrSet("href", _to_html(str(child.attrGet("href"))))
        elif child.type == "image":
            page.links.append(str(child.attrGet("src")))
        elif child.type == "code_inline" and (named := _NAMED.fullmatch(child.content)):
            up = "../" * (len(path.parts) - 1)
            page.links.append(up + named[1])
            child.type = "html_inline"
            child.content = f'<a href="{_to_html(up + named[1])}"><code>{child.content}</code></a>'
    return page


def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True, "highlight": _highlight})
    return parser.enable(["table", "strikethrough"])


def _highlight(code: str, language: str, _attributes: str) -> str:
    try:
        return str(highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True)))
    except ClassNotFound:
        return html.escape(code)


def _children(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield from token.children or ()


def _text(token: Token) -> str:
    """Return the text of a paragraph or a block without its markup; links keep their names."""
    if token.type == "fence":
        return token.content
    if token.type == "html_block":
        return html.unescape(re.sub(r"<[^>]*>", " ", token.content))
    breaks = ("softbreak", "hardbreak")
    return "".join(
        " " if child.type in breaks else re.sub(r"<[^>]*>", "", child.content)
        for child in token.children or ()
    )


def _plain(inside: Token) -> str:
    return "".join(child.content for child in inside.children or ())


def _slug(text: str) -> str:
    """Return the id that GitHub gives a heading, so that links work in both places."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def _unique(name: str, taken: dict[str, str]) -> str:
    number, unique = 1, name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique


def _to_html(link: str) -> str:
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    path = re.sub(r"(^|/)README\.md$", r"\1index.html", parts.path)
    path = f"{path}index.html" if path.endswith("/") else re.sub(r"\.md$", ".html", path)
    return parts._replace(path=path).geturl()


# --- checking -------------------------------------------------------------------------------------


def broken(docs: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for page in pages.values():
        for link in page.links:
            if reason := _problem(docs, pages, page, link):
                yield f"docs/{page.path}: {link}: {reason}"


def _problem(docs: Path, pages: dict[Path, Page], page: Page, link: str) -> str | None:
    parts = urlsplit(link)
    if parts.scheme in ("https", "http", "mailto"):
        return None
    target = page.path
    if parts.path:
        place = (docs / page.path.parent / unquote(parts.path)).resolve()
        if not place.is_relative_to(docs.resolve()):
            return "points out of docs/; name the file in the text instead"
        target = place.relative_to(docs.resolve())
        target = target / INDEX if place.is_dir() else target
        if target not in pages and not (docs / target).is_file():
            return "no such file"
    heading = unquote(parts.fragment)
    if heading and target in pages and heading not in pages[target].headings:
        return "no such heading"
    return None


def unlisted(docs: Path, pages: dict[Path, Page]) -> Iterator[str]:
    listed = {Path(link) for _, links in _groups(docs) for _, link in links}
    for path in pages:
        if path.parent == Path() and path.name != INDEX and path not in listed:
            yield f"docs/{path}: not listed in docs/{INDEX}"


def unlinked_translations(pages: dict[Path, Page]) -> Iterator[str]:
    for page in pages.values():
        if page.language == "en":
            continue
        original = page.path.with_name(page.path.name.replace(".ko.md", ".md"))
        if original not in pages:
            yield f"docs/{page.path}: translates docs/{original}, which does not exist"
            continue
        for one, other in ((page.path, original), (original, page.path)):
            if other.name not in pages[one].links:
                yield f"docs/{one}: has no link to docs/{other}, the same page in another language"


def _groups(docs: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return purposes with their pages: rows of the table in docs/README.md, and the reference."""
    text = (docs / INDEX).read_text("utf-8")
    rows = [(purpose, _LINK.findall(links)) for purpose, links in _ROW.findall(text)]
    return [*rows, (TITLE, [(package, path_of(package).as_posix()) for package in PACKAGES])]


# --- writing --------------------------------------------------------------------------------------


def write(docs: Path, out: Path, pages: dict[Path, Page]) -> None:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(docs, out, ignore=shutil.ignore_patterns("*.md", "site"))
    template = Template((docs / "site" / "page.html").read_text("utf-8"))
    for page in pages.values():
        up = "../" * (len(page.path.parts) - 1)
        text = template.substitute(
            lang=page.language,
            title=html.escape(page.title),
            up=up,
            nav=_nav(docs, page, up),
            contents=_contents(page),
            body=_markdown().renderer.render(page.tokens, _markdown().options, {}),
        )
        target = out / page.out
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    for name in ("site.css", "site.js"):
        shutil.copy(docs / "site" / name, out / name)
    with (out / "site.css").open("a", encoding="utf-8") as file:
        for scheme, style in _CODE_STYLES.items():
            formatter = HtmlFormatter(style=style, nobackground=True)
            colours = formatter.get_style_defs("pre code")
            file.write(f"@media (prefers-color-scheme: {scheme}) {{\n{colours}\n}}\n")
    entries = [section for page in pages.values() for section in page.sections()]
    words = json.dumps(entries, ensure_ascii=False)
    (out / "words.js").write_text(f"const SECTIONS = {words};\n", "utf-8")


def _nav(docs: Path, page: Page, up: str) -> str:
    lines = []
    for purpose, links in _groups(docs):
        lines.append(f"<h2>{html.escape(purpose)}</h2><ul>")
        for name, link in links:
            target = _to_html(link)
            here = ' aria-current="page"' if target == page.out.as_posix() else ""
            lines.append(f'<li><a href="{up}{target}"{here}>{html.escape(name)}</a></li>')
        lines.append("</ul>")
    return "\n".join(lines)


def _contents(page: Page) -> str:
    second = [name for name, level in page.levels.items() if level == 2]
    if len(second) < 2:
        return ""
    items = "".join(
        f'<li><a href="#{name}">{html.escape(page.headings[name])}</a></li>' for name in second
    )
    return f"<ul>{items}</ul>"


if __name__ == "__main__":
    sys.exit(main())
