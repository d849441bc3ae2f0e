"""The site of `make docs`: every page and name is there, links work, and nothing comes from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import harness
import harness_sql
from harness.compare import keys as comparisons
from harness.contracts.hookspecs import HARNESS_API
from harness.runs import schema as results

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mkdocs() -> None:
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; `make docs` installs it")


def _build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(mkdocs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("built") / "site"
    done = _build(REPO, built)
    assert done.returncode == 0, done.stderr
    return built


def test_every_document_is_a_page(site: Path) -> None:
    negative = REPO / "results" / "negative.md"
    root_pages = (REPO / "CONTRIBUTING.md", REPO / "CHANGELOG.md")
    for document in (*REPO.glob("docs/*.md"), *root_pages, negative):
        assert (site / document.relative_to(REPO)).with_suffix(".html").is_file(), document
    for study in (REPO / "results").rglob("README.md"):
        assert (site / study.relative_to(REPO)).with_name("index.html").is_file(), study
    for folder in ("", "results", "recipes", "examples/arithmetic"):
        assert (site / folder / "index.html").is_file(), folder


def test_every_public_name_has_its_documentation(site: Path) -> None:
    for package in (harness, harness_sql):
        page = (site / "docs" / "api" / f"{package.__name__}.html").read_text(encoding="utf-8")
        documented = {
            name.rpartition(".")[2]
            for name in re.findall(rf'id="({package.__name__}\.[\w.]+)"', page)
        }
        assert set(package.__all__) <= documented
    assert "One question with its gold." in (site / "docs" / "api" / "harness.html").read_text(
        encoding="utf-8"
    )


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loads = re.findall(
            r'<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)="?(?:https?:)?//[^\s">]+', text
        )
        assert not loads, page
        assert 'class="mermaid"' not in text, page  # the theme would fetch a script for it
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_formulas_and_outputs_of_notebooks_are_in_the_pages(site: Path) -> None:
    compare = (site / "docs" / "compare.html").read_text(encoding="utf-8")
    assert compare.count("<math") > 20 and r"\sum" not in compare
    assert "reward_shuffled differs" in (site / "examples" / "first_look.ipynb.html").read_text(
        encoding="utf-8"
    )


def test_links_lead_somewhere_or_end_the_build(mkdocs: None, tmp_path: Path) -> None:
    """To folders, notebooks and sources of the repository they work; to what is not there they are named."""
    root = tmp_path / "root"
    root.mkdir()
    for part in REPO.iterdir():
        if part.name not in ("docs", "tools", "site") and not part.name.startswith("."):
            (root / part.name).symlink_to(part)
    for part in ("docs", "tools"):
        shutil.copytree(REPO / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    with (root / "docs" / "overhead.md").open("a", encoding="utf-8") as page:
        page.write(
            "\n[a](../examples/arithmetic/), [b](../examples/first_look.ipynb), [c](../harness/records.py)\n"
        )
        page.write(
            "\n[d](no-such-page.md), [e](training.md#no-such-heading), [f](../harness/no_such_source.py)\n"
        )
    (root / "docs" / "unlisted.md").write_text("# In no navigation\n", encoding="utf-8")

    done = _build(root, tmp_path / "site")

    assert done.returncode == 1
    warnings = [
        line for line in done.stderr.splitlines() if "WARNING" in line or line.startswith("  - ")
    ]
    for fault in ("no-such-page.md", "#no-such-heading", "no_such_source.py", "unlisted.md"):
        assert any(fault in line for line in warnings), done.stderr
    text = (tmp_path / "site" / "docs" / "overhead.html").read_text(encoding="utf-8")
    for target in (
        "../examples/arithmetic/index.html",
        "../examples/first_look.ipynb.html",
        "../harness/records.py",
    ):
        assert f'href="{target}"' in text
        assert (tmp_path / "site" / "docs" / target).resolve().is_file()


def test_versions_in_the_documentation_are_those_of_the_code() -> None:
    rows = (REPO / "docs" / "versioning.md").read_text(encoding="utf-8")
    assert f"`schema_version` in `run.json`, now {results.SCHEMA_VERSION} |" in rows
    assert (
        f"`schema_version` of `harness compare --format json`, now {comparisons.SCHEMA_VERSION} |"
        in rows
    )
    assert f"`HARNESS_API`, now {HARNESS_API}, stated by every plugin |" in rows


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == harness.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
