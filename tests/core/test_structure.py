"""What `docs/architecture.md` promises of the tree: arrows go one way, and shared packages know no task."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parents[2]
HARNESS = REPO / "harness"
SQL = REPO / "plugins" / "sql" / "src" / "harness_sql"
STUDY = REPO / "plugins" / "study" / "src" / "harness_study"
PACKAGES = (
    "__init__",
    "errors",
    "records",
    "util",
    "config",
    "mock_model",
    "runs",
    "contracts",
    "plugins",
    "gateway",
    "policies",
    "rollout",
    "parity",
    "compare",
    "training",
    "doctor",
    "testing",
    "api",
    "cli",
    "__main__",
)
"""From the bottom up: a package may import those before it, also inside functions and for types alone."""
SHARED = ("records", "gateway", "rollout", "runs", "compare", "training")
SHARED_PARTS = (
    "parity/recorder",
    "parity/comparison",
    "parity/recording_relay",
    "parity/certificate",
    "contracts/hookspecs",
    "contracts/toolbox",
    "contracts/trainers",
    "util/paid_calls",
    "util/tool_calls",
)
WORDS = re.compile(
    r"\bsql\b|_sql\b|\bquer(?:y|ies)\b|\bdb_|(?:write|check|rewrite)_query|\bschema of a database",
    re.IGNORECASE,
)

BOUNDS = {
    "levels of the core": 13,
    "circles of packages": 0,
    "circles of modules": 0,
    "modules over 400 lines": 6,
    "functions over 80 lines or 8 parameters": 9,
    "words of README": 700,
    "words of the index of results": 800,
    "words of the longest page of a study": 600,
    "words of the changelog": 300,
    "words of docs": 40_000,
}


def _modules() -> Iterator[Path]:
    return (file for file in sorted(HARNESS.rglob("*.py")) if "__pycache__" not in file.parts)


def _package(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every import of harness's own modules, wherever it stands, those for types too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            yield from ((node.lineno, f"harness.{one.name}") for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names)


def test_every_package_has_its_place() -> None:
    there = {file.relative_to(HARNESS).parts[0].removesuffix(".py") for file in _modules()}
    assert there == set(PACKAGES)


def test_the_tree_in_the_documentation_is_the_tree() -> None:
    page = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.split("```")[3]
    before, below_plugins = tree.split("\nplugins/", 1)
    plugins, below_contrib = below_plugins.split("\ncontrib/", 1)
    contrib = below_contrib.split("\nconfigs/", 1)[0]
    assert before.split()[0] == "harness/"
    for name, text in (("plugins", plugins), ("contrib", contrib)):
        folders = {file.parent.name for file in REPO.glob(f"{name}/*/pyproject.toml")}
        documented = set(re.findall(r"(?:(?<=^  )|(?<=/ ))([a-z0-9_]+)(?=/)", text, re.MULTILINE))
        assert documented == folders
    table = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
    packages = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert packages == set(PACKAGES) - {"__init__", "__main__"}


def test_arrows_go_one_way() -> None:
    wrong = []
    for file in _modules():
        here = file.relative_to(HARNESS).parts[0].removesuffix(".py")
        if here == "__init__":  # the face, which has names of all
            continue
        for line, name in _imports(file):
            if name.split(".")[0] != "harness" or _package(name) == here:
                continue
            if _package(name) not in PACKAGES:
                wrong.append(
                    f"{file.relative_to(REPO)}:{line}: {name} is of the face: import it from its home"
                )
            elif PACKAGES.index(_package(name)) > PACKAGES.index(here):
                wrong.append(f"{file.relative_to(REPO)}:{line}: {here} must not import {name}")
    assert not wrong, "\n".join(wrong)


def test_the_core_knows_no_plugin_not_even_for_types() -> None:
    plugin = re.compile(
        r"^\s*(?:from|import) (?:harness_\w+|verl|ray|agentlightning)\b", re.MULTILINE
    )
    texts = {
        file.relative_to(REPO).as_posix(): file.read_text(encoding="utf-8") for file in _modules()
    }
    found = {
        name: match.group().strip()
        for name, text in texts.items()
        if (match := plugin.search(text))
    }
    assert found == {}


def test_shared_packages_know_no_task() -> None:
    wrong = []
    files = []
    for file in _modules():
        place = file.relative_to(HARNESS).as_posix().removesuffix(".py")
        if place.split("/")[0] in SHARED or place in SHARED_PARTS:
            files.append(file)
    for file in [*files, *sorted(STUDY.glob("*.py"))]:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if WORDS.search(line.replace("parts.query", "")):
                wrong.append(f"{file.relative_to(REPO)}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_documents_and_examples_import_from_the_face_alone() -> None:
    files = [
        *(REPO / "docs").glob("*.md"),
        *(REPO / "examples").rglob("*.py"),
        *(HARNESS / "cli" / "templates").rglob("*.txt"),
    ]
    own = re.compile(r"^(?:from|import) harness\.", re.MULTILINE)
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    assert [str(file.relative_to(REPO)) for file, text in texts.items() if own.search(text)] == []


def test_the_face_says_the_same_of_every_name() -> None:
    """In `__all__`, to those who check types, and where it is imported from."""
    for face in (HARNESS, SQL):
        tree = ast.parse((face / "__init__.py").read_text(encoding="utf-8"))
        lists = {
            ast.unparse(node.targets[0]): ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) in ("__all__", "_HOMES")
        }
        homes = {name: home for home, names in lists["_HOMES"].items() for name in names.split()}
        typed = {
            one.name: str(node.module)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and str(node.module).startswith(face.name)
            and node.col_offset
            for one in node.names
        }
        assert list(homes) and sorted(homes) == sorted(lists["__all__"]) == sorted(typed)
        modules = [name for name, home in homes.items() if home == face.name]
        assert {name: home for name, home in homes.items() if name not in modules} == {
            name: home for name, home in typed.items() if name not in modules
        }


def _structure() -> ModuleType:
    """Import `tools/structure.py`, which is in no package."""
    sys.path.insert(0, str(REPO / "tools"))
    try:
        return importlib.import_module("structure")
    finally:
        sys.path.pop(0)


def test_measures_of_the_code_only_fall() -> None:
    """`python tools/structure.py` prints them; lower a bound when its measure has fallen, never raise one."""
    measured = _structure().measures()
    assert measured.keys() == BOUNDS.keys()
    assert {name: value for name, value in measured.items() if value > BOUNDS[name]} == {}


SAMPLE = '''"""Nobody said it (asked
for twice)."""

told = "beside the point"  # Whose?


def stands(values):
    """Goes on."""
    message = f"{values} put right, and whoever {told}"
    pairs = [(a, b) for a in values for b in [c for c in values]]
    return {name for name in pairs}, message
'''


def test_private_words_count_in_prose_and_never_in_identifiers() -> None:
    counts = _structure().count(SAMPLE)
    # Nobody, said, asked for; beside; Whose; Goes on; put right, whoever.
    assert counts.private_words == 8
    assert counts.comments == 1
    # The assignment, the signature and three lines of the body: no docstring, no blank line.
    assert counts.code_lines == 5
    assert (counts.comprehensions, counts.nested_comprehensions) == (3, 1)


def test_wide_lines_are_those_over_the_limit() -> None:
    limit = _structure().WIDE_LINE
    fitting, wide = "x = " + "1" * (limit - 4), "y = " + "1" * (limit - 3)
    counts = _structure().count(f"{fitting}\n{wide}\n")
    assert (counts.lines, counts.wide_lines) == (2, 1)


def test_readability_sums_files_before_it_divides() -> None:
    figures = _structure().readability(["x = 'said'\n", "y = 1\n" * 9])
    assert figures["private words per 1,000 code lines"] == pytest.approx(100)
    assert figures.keys() == _structure().REFERENCE_FIGURES.keys()
    assert set(_structure().readability([]).values()) == {0}
