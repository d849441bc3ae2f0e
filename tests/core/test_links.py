"""Links in Markdown files: every relative link has a target, and every anchor a heading."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

REPO = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\S\n]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINKS = (
    re.compile(r"\]\(\s*<?(?P<target>[^)\s>]+)"),
    re.compile(r"^\[[^]\n]+\]:\s*(?P<target>\S+)", re.MULTILINE),
    re.compile(r"\b(?:href|src)=\"(?P<target>[^\"]+)\""),
)
"""Inline links and images, definitions of references, and HTML."""
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
LINKED_TEXT = re.compile(r"\[([^]]*)\]\([^)]*\)")
HTML_ANCHOR = re.compile(r"\b(?:id|name)=\"([^\"]+)\"")
OF_A_SITE = re.compile(r"[a-z][a-z0-9+.-]*:")


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page without a target, and those to a missing heading."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    prose = CODE.sub("", text)
    broken = []
    for pattern in LINKS:
        for match in pattern.finditer(prose):
            target = match["target"]
            if not OF_A_SITE.match(target) and not has_target(page, unquote(target)):
                broken.append(target)
    return broken


def has_target(page: Path, link: str) -> bool:
    """Return whether a file, or a folder, and the heading that a link names exist."""
    place, _, anchor = link.partition("#")
    target = page.parent / place if place else page
    if target.is_dir() and anchor:
        target /= "README.md"
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found = set(HTML_ANCHOR.findall(text))
    uses: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        shown = LINKED_TEXT.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        number = uses[slug] = uses.get(slug, -1) + 1
        found.add(f"{slug}-{number}" if number else slug)
    return found


def test_every_relative_link_of_every_page_has_a_target() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=REPO, capture_output=True, text=True
    )
    if tracked.returncode:
        pytest.skip("not a Git repository")
    broken = {}
    for name in filter(None, tracked.stdout.split("\0")):
        if links := broken_links(REPO / name):
            broken[name] = links
    assert not broken


def test_a_link_without_a_target_is_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "README.md").write_text("# Of a folder\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# The `first` heading, [linked](https://example.org/)\n\n## Twice\n\n## Twice\n\n"
        "[a](#the-first-heading-linked) [b](folder/) [c](folder#of-a-folder) [d](#twice-1)\n"
        "`[code](missing.md)` [e](https://example.org/missing.md)\n\n"
        "```\n[fenced](missing.md)\n# No heading\n```\n\n"
        "[f](missing.md) [g](#no-heading) [h](folder/README.md#twice) ![i](missing.png)\n\n"
        "[reference]: missing/\n",
        encoding="utf-8",
    )

    assert broken_links(page) == [
        *("missing.md", "#no-heading", "folder/README.md#twice", "missing.png"),
        "missing/",
    ]
