"""The hook of mkdocs behind `make docs`: select and convert the site's pages.

A page has the same place in the site as its file in the repository, so that one link works in both.
Files that are not pages (plots, sources) are copied where a page links to them, other Markdown
files and notebooks become pages, and a link to a missing file ends the build. The reference of the
Python API has the names that `harness` and `harness_sql` offer, with the docstrings of their
modules.
"""

from __future__ import annotations

import ast
import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?=[#)\s])")
"""Target of a Markdown link within the repository, without the anchor."""
FACES = {
    "harness": ROOT / "harness",
    "harness_sql": ROOT / "plugins" / "sql" / "src" / "harness_sql",
}
CHAPTERS = {
    "In Python and notebooks": re.compile(r"harness$|harness\.(compare|python)\b"),
    "Contracts, as test classes to inherit": re.compile(r"harness(_sql)?\.testing\b"),
    "For plugins": re.compile(r"."),
}
"""Chapters, each with the modules that define its names. The first match counts."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Use GitHub's anchors for headings, and formulas without a script."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.markdown_extensions.append(Formulas())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files, the navigation's pages, all of docs/, and what they link to."""
    found = {file.src_uri: file for file in files if file.src_dir != config.docs_dir}
    for package in FACES:
        uri = f"docs/api/{package}.md"
        found[uri] = File.generated(config, uri, content=reference(package))
    pages = {
        *_named(config.nav),
        *map(str, config.extra_css),
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")),
    } - set(found)
    waiting = [(uri, InclusionLevel.UNDEFINED) for uri in sorted(pages)]
    while waiting:
        uri, inclusion = waiting.pop()
        if uri in found or not (file := _file(uri, inclusion, config)):
            continue  # what the navigation names and is not there, mkdocs tells
        found[uri] = file
        if file.is_documentation_page():
            waiting += [(to, InclusionLevel.NOT_IN_NAV) for to in _linked(uri, file.content_string)]
    return Files(found.values())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to notebooks and folders to their pages."""

    def pointed(match: re.Match[str]) -> str:
        target = match["target"]
        here = posixpath.dirname(page.file.src_uri)
        return (
            posixpath.relpath(_source(here, target), here or ".")
            if _moved(here, target)
            else target
        )

    return LINK.sub(pointed, markdown)


def reference(package: str) -> str:
    """Return the API's page: every name of `__all__`, under its module."""
    face = _constants(FACES[package] / "__init__.py")
    home = {name: place for place, names in face["_HOMES"].items() for name in names.split()}
    chapters: dict[str, dict[str, list[str]]] = {title: {} for title in CHAPTERS}
    for name in sorted(face["__all__"], key=lambda name: (home[name], name.lower())):
        title = next(title for title, homes in CHAPTERS.items() if homes.match(home[name]))
        place = (
            f"{package}.{name}" if home[name] == package else home[name]
        )  # a module that is called like the name
        chapters[title].setdefault(place, []).append(name)
    lines = [f"# `{package}`", "", face["__doc__"], ""]
    for title, homes in chapters.items():
        lines += [f"## {title}", ""] if homes else []
        for place, names in homes.items():
            lines += [
                f"### `{place}`",
                "",
                _summary(place),
                "",
                *(f"::: {place}.{name}" for name in names),
                "",
            ]
    return "\n\n".join(lines)


class Formulas(Extension):
    """`$...$` and `$$...$$` become MathML."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After code spans (190), before escapes (180).
        md.inlinePatterns.register(_Formula(r"\$\$(.+?)\$\$", md, "block"), "formulas", 186)
        md.inlinePatterns.register(
            _Formula(r"(?<![\\\w$])\$(?=\S)([^$]*?\S)(?<!\\)\$(?!\w)", md, "inline"), "formula", 185
        )


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element | str, int, int]:
        return self.md.htmlStash.store(convert(m[1], display=self.display)), m.start(0), m.end(0)


def notebook(path: Path) -> str:
    """Return a notebook as Markdown with the printed output of its cells; charts are only named."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(
                    "<div>\n" + re.sub(r"\n\s*\n", "\n", "".join(data["text/html"])) + "\n</div>"
                )
            elif text := "".join(data.get("text/plain", output.get("text", ""))):
                parts.append(f"<pre><code>{html.escape(text)}</code></pre>")
            else:
                parts.append("*(a chart, in the notebook)*")
    return "\n\n".join(parts)


def _file(uri: str, inclusion: InclusionLevel, config: MkDocsConfig) -> File | None:
    path = ROOT / uri
    if path.is_file():
        return File(uri, str(ROOT), config.site_dir, config.use_directory_urls, inclusion=inclusion)
    if path.suffix == ".md" and path.with_suffix("").is_file():
        return File.generated(
            config, uri, content=notebook(path.with_suffix("")), inclusion=inclusion
        )
    return None


def _linked(uri: str, text: str) -> Iterator[str]:
    """Yield the files within the repository that a page links to, as paths of the site."""
    for match in LINK.finditer(text):
        source = _source(posixpath.dirname(uri), match["target"])
        if not source.startswith("../"):
            yield source


def _source(here: str, target: str) -> str:
    """Return a link's file: a folder's README, a notebook's page, or the file itself."""
    path = posixpath.normpath(posixpath.join(here, target))
    if path.endswith(".ipynb"):
        return f"{path}.md"
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _moved(here: str, target: str) -> bool:
    source = _source(here, target)
    return source != posixpath.normpath(posixpath.join(here, target)) and _there(source)


def _there(source: str) -> bool:
    return (ROOT / source).is_file() or (ROOT / source.removesuffix(".md")).is_file()


def _named(nav: Any) -> Iterator[str]:
    """Yield every page of the navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict | list):
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(part)

    """Return the docstring of a module, and the literals that it assigns."""


def _constants(file: Path) -> dict[str, Any]:
    """The docstring of a module, and what it assigns as literals."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"__doc__": ast.get_docstring(tree) or ""}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _summary(module: str) -> str:
    """Return the first paragraph of a module's docstring."""
    package, *below = module.split(".")
    file = FACES[package].joinpath(*below)
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return str(_constants(file)["__doc__"]).split("\n\n")[0]
