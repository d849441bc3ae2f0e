"""Measure the code and its pages: `python tools/structure.py`.

`tests/core/test_structure.py` checks the bounds. Totals of lines have no bound: readable code comes
before short code. Arrows are imports between the packages (modules and packages right below
`harness/`), wherever they are, also those for types alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "harness"
PLUGINS = (ROOT / "plugins", ROOT / "contrib")
LONG_MODULE = 400
LONG_FUNCTION = 80
MANY_PARAMETERS = 8
COMMANDS = (
    "harness/cli",
    "harness_sql/cli",
    "harness_teams/cli",
    "harness_report/command",
    "harness_power_analysis/command",
    "harness_study/command",
)
"""Modules with functions that have a command's options as parameters."""
REFERENCE_READMES = {"tox": 137, "Inspect": 404, "httpx": 548}
"""Words of other projects' README files, counted in the same way."""
GENERATED_PAGES = frozenset({"docs/comparisons.md", "docs/records.md"})
"""Pages that `tools/fields.py` makes of the code."""
_GENERATED_TABLE = re.compile(r"<!-- table:.*?<!-- /table -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCED_CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_INDENTED_CODE = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n|\n(?= {4}))+")
WIDE_LINE = 100
PRIVATE_WORDS = re.compile(
    r"\b(?:said|told|whose|beside|stands|anew|nobody|whoever|mended"
    r"|asked\s+for|goes\s+on|put\s+right|of\s+what)\b",
    re.IGNORECASE,
)
"""Words of a private English, which plain technical prose does without."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
REFERENCE_FIGURES = {
    "private words per 1,000 code lines": "0 to 2.1",
    "lines over 100 columns, %": "at most 0.3",
    "comprehensions per 1,000 code lines": "9 to 19",
    "nested comprehensions per 1,000 code lines": "under 1",
    "comments per 100 code lines": "6 to 13",
}
"""The same measures for simonw/llm, tox, httpx, Inspect AI and verifiers."""


@cache
def files(folder: Path) -> tuple[Path, ...]:
    """Return a folder's Python files, without tests of plugins."""
    found = (
        file
        for file in sorted(folder.rglob("*.py"))
        if not {"__pycache__", "tests"} & set(file.parts)
    )
    return tuple(found)


@cache
def tree(file: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path) -> Iterator[str]:
    """Yield the modules of harness that a file imports, for types too, also as `from` names."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{one.name}" for one in node.names]
            yield from (one if one in modules() else node.module for one in inner)


@cache
def modules() -> Mapping[str, Path]:
    """Return the core's files by the names of their modules."""
    names = {}
    for file in files(CORE):
        parts = file.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


def arrows(by_package: bool) -> dict[str, set[str]]:
    """Return the imports of each module or package of the core, without `harness` itself."""

    def place(module: str) -> str:
        return module.split(".")[1] if by_package else module

    found: dict[str, set[str]] = defaultdict(set)
    for name, file in modules().items():
        if name == "harness":
            continue
        wanted = {
            one for one in imported(file) if one in modules() and one not in ("harness", name)
        }
        found[place(name)] |= {place(one) for one in wanted} - {place(name)}
    return dict(found)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return groups of several nodes that import each other, in circles of any length."""
    reach = {one: _reached(graph, one) for one in graph}
    found = {
        tuple(sorted(other for other in graph if other in reach[one] and one in reach[other]))
        for one in graph
    }
    return [list(group) for group in sorted(found) if len(group) > 1]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    wait = [start]
    while wait:
        for one in graph.get(wait.pop(), set()) - seen:
            seen.add(one)
            wait.append(one)
    return seen


def levels(graph: Mapping[str, set[str]]) -> int:
    """Return the number of levels of packages; the packages of a circle share a level."""
    of = {
        one: min([one, *group])
        for one in graph
        for group in [next((g for g in circles(graph) if one in g), [one])]
    }
    above = {
        one: {of[other] for each in graph if of[each] == one for other in graph[each]} - {one}
        for one in of.values()
    }

    @cache
    def height(one: str) -> int:
        return 1 + max((height(other) for other in above[one]), default=0)

    return max(map(height, above))


def functions(file: Path) -> Iterator[tuple[str, int, int]]:
    """Yield place, lines and number of parameters of every function."""
    place = file.relative_to(ROOT).as_posix()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = node.args
            names = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
            count = len([one for one in names if one.arg not in ("self", "cls")])
            yield (
                f"{place}:{node.lineno} {node.name}",
                int(node.end_lineno or 0) - node.lineno + 1,
                count,
            )


def words(page: Path, tables: bool = True) -> int:
    """Count the words of a page's prose and tables, without code blocks and HTML comments.

    Args:
        page: A Markdown file.
        tables: Count tables that `tools/table.py` generates from records, too.
    """
    text = page.read_text(encoding="utf-8")
    if not tables:
        text = _GENERATED_TABLE.sub("", text)
    for ignored in (_COMMENT, _FENCED_CODE, _INDENTED_CODE):
        text = ignored.sub("", text)
    return sum(any(character.isalnum() for character in word) for word in text.split())


def study_pages() -> list[Path]:
    """Return the pages of single studies below results/."""
    results = ROOT / "results"
    return [page for page in sorted(results.rglob("README.md")) if page.parent != results]


def written_pages() -> list[Path]:
    """Return the pages of docs/ that are written by hand."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    return [page for page in pages if page.relative_to(ROOT).as_posix() not in GENERATED_PAGES]


def measures() -> dict[str, int]:
    """Return every measure by its name."""
    packages, whole = arrows(by_package=True), circles(arrows(by_package=False))
    return {
        "levels of the core": levels(packages),
        "circles of packages": len(circles(packages)),
        "circles of modules": len(whole),
        "modules over 400 lines": len(long_modules()),
        "functions over 80 lines or 8 parameters": len(long_functions()),
        "words of README": words(ROOT / "README.md"),
        "words of the index of results": words(ROOT / "results" / "README.md"),
        "words of the longest page of a study": max(
            words(page, tables=False) for page in study_pages()
        ),
        "words of the changelog": words(ROOT / "CHANGELOG.md"),
        "words of docs": sum(words(page) for page in written_pages()),
    }


def plugin_files() -> Iterable[Path]:
    """Yield the source files of all plugins."""
    for folder in PLUGINS:
        yield from files(folder)


def long_modules() -> list[str]:
    """Return modules of core and plugins with too many lines, comments included."""
    ours = (*files(CORE), *plugin_files())
    sizes = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in ours}
    return [
        f"{file.relative_to(ROOT)} {lines}" for file, lines in sizes.items() if lines > LONG_MODULE
    ]


def long_functions() -> list[str]:
    """Return functions of core and plugins with too many lines or parameters."""
    found = []
    for file in (*files(CORE), *plugin_files()):
        of_command = any(place in file.as_posix() for place in COMMANDS)
        for place, lines, parameters in functions(file):
            if lines > LONG_FUNCTION or (parameters > MANY_PARAMETERS and not of_command):
                found.append(f"{place}: {lines} lines, {parameters} parameters")
    return found


@dataclass(frozen=True)
class Counts:
    """Lines, words and comprehensions of some source files, for `readability`."""

    lines: int = 0
    code_lines: int = 0
    wide_lines: int = 0
    comments: int = 0
    private_words: int = 0
    comprehensions: int = 0
    nested_comprehensions: int = 0


def count(source: str) -> Counts:
    """Count lines, private words and comprehensions of one source text.

    Code lines hold more than blanks, comments and docstrings. Private words count in comments,
    docstrings and string literals, never in identifiers. A comprehension inside another is nested.
    """
    syntax = ast.parse(source)
    prose = list(_texts(syntax))
    comments = []
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string)
        elif token.string.strip() and token.type != tokenize.ENDMARKER:
            code_lines.update(range(token.start[0], token.end[0] + 1))
    comprehensions = [node for node in ast.walk(syntax) if isinstance(node, COMPREHENSIONS)]
    lines = source.splitlines()
    return Counts(
        lines=len(lines),
        code_lines=len(code_lines - _docstring_lines(syntax)),
        wide_lines=sum(len(line) > WIDE_LINE for line in lines),
        comments=len(comments),
        private_words=sum(len(PRIVATE_WORDS.findall(text)) for text in [*prose, *comments]),
        comprehensions=len(comprehensions),
        nested_comprehensions=len(_nested(comprehensions)),
    )


def _texts(syntax: ast.AST) -> Iterator[str]:
    """Yield all string literals, including docstrings and the text parts of f-strings."""
    for node in ast.walk(syntax):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _docstring_lines(syntax: ast.Module) -> set[int]:
    """Return the lines of all docstrings, including those of attributes."""
    lines: set[int] = set()
    for node in ast.walk(syntax):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            lines.update(range(node.lineno, int(node.end_lineno or node.lineno) + 1))
    return lines


def _nested(comprehensions: Iterable[ast.AST]) -> set[ast.AST]:
    """Return the comprehensions that lie inside another one."""
    nested: set[ast.AST] = set()
    for outer in comprehensions:
        for node in ast.walk(outer):
            if node is not outer and isinstance(node, COMPREHENSIONS):
                nested.add(node)
    return nested


def readability(sources: Iterable[str]) -> dict[str, float]:
    """Return the measures of `REFERENCE_FIGURES` for these source texts together, by name."""
    counts = [count(source) for source in sources]
    thousand_code_lines = sum(one.code_lines for one in counts) / 1000 or 1
    hundred_lines = sum(one.lines for one in counts) / 100 or 1
    private_words = sum(one.private_words for one in counts)
    wide_lines = sum(one.wide_lines for one in counts)
    comprehensions = sum(one.comprehensions for one in counts)
    nested = sum(one.nested_comprehensions for one in counts)
    comments = sum(one.comments for one in counts)
    return {
        "private words per 1,000 code lines": private_words / thousand_code_lines,
        "lines over 100 columns, %": wide_lines / hundred_lines,
        "comprehensions per 1,000 code lines": comprehensions / thousand_code_lines,
        "nested comprehensions per 1,000 code lines": nested / thousand_code_lines,
        "comments per 100 code lines": comments / (10 * thousand_code_lines),
    }


def packages() -> dict[str, list[Path]]:
    """Return the files of each package of the core and of each plugin, by its path."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for file in (*files(CORE), *plugin_files()):
        parts = file.relative_to(ROOT).parts
        groups["/".join(parts[:2])].append(file)
    return dict(groups)


def main(by_package: bool = False) -> None:
    """Print the measures, their reference figures, and the cases that should not exist."""
    for name, value in measures().items():
        print(f"{value:7,}  {name}")
    references = ", ".join(f"{name} {count}" for name, count in REFERENCE_READMES.items())
    print(f"         (README files of other projects: {references} words)")
    groups = packages()
    texts = {
        package: [file.read_text(encoding="utf-8") for file in members]
        for package, members in groups.items()
    }
    everything = [text for members in texts.values() for text in members]
    print("\nreadability of harness/ and plugins/ (reference projects in brackets):")
    for name, figure in readability(everything).items():
        print(f"{figure:7.1f}  {name} ({REFERENCE_FIGURES[name]})")
    if by_package:
        print("\nprivate words per 1,000 code lines, by package:")
        for package, members in texts.items():
            figure = readability(members)["private words per 1,000 code lines"]
            print(f"{figure:7.1f}  {package}")
    for title, found in (
        ("circles of packages", [" ".join(group) for group in circles(arrows(by_package=True))]),
        ("circles of modules", [" ".join(group) for group in circles(arrows(by_package=False))]),
        ("modules over 400 lines", long_modules()),
        ("functions over 80 lines or 8 parameters", long_functions()),
    ):
        print(f"\n{title}:", *found, sep="\n  ")


if __name__ == "__main__":
    main(by_package="--by-package" in sys.argv[1:])
