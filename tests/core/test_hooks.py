"""Every hook has a page whose example works as it stands, and a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness.contracts.hookspecs import HarnessHooks
from harness.plugins import KINDS, Registry, load

REPO = Path(__file__).resolve().parents[2]
HOOKS = [name for name in vars(HarnessHooks) if name.startswith("harness_")]
PAGES = {
    "environment": "add-an-environment.md",
    "program": "add-a-program.md",
    "task set": "add-a-task-set.md",
    "reward": "add-a-reward.md",
    "trainer": "add-a-trainer.md",
}
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_page(hook: str) -> None:
    mention = re.compile(rf"[Hh]ook\s+`{hook}`")
    pages = [
        page.name
        for page in (REPO / "docs").glob("add-a*.md")
        if mention.search(page.read_text(encoding="utf-8"))
    ]
    assert len(pages) == 1, (
        f"{hook} is to be explained on one page docs/add-a*.md, not on {pages or 'none'}"
    )


def test_the_table_of_hooks_has_all_with_their_examples() -> None:
    page = (REPO / "docs" / "add-a-plugin.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(harness_\w+)` \| .+ \| `(\w+/\w+)` \|$", page, re.MULTILINE)
    assert [hook for hook, _ in rows] == [*dict(rows)] and {*dict(rows)} == {*HOOKS}
    for hook, package in rows:
        sources = (REPO / package / "src").rglob("*.py")
        assert any(f"def {hook}(" in file.read_text(encoding="utf-8") for file in sources), hook


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test_that_uses_it(hook: str) -> None:
    tests = [
        file for file in (REPO / "tests").rglob("test_*.py") if file != Path(__file__).resolve()
    ]
    assert any(
        f'"{hook}"' in (text := file.read_text(encoding="utf-8")) or f"def {hook}(" in text
        for file in tests
    ), hook


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAGES)
def test_the_example_of_a_page_is_found_and_passes_its_own_test(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (REPO / "docs" / PAGES[kind]).read_text(encoding="utf-8")
    files = dict(BLOCK.findall(text))
    assert len(files) == text.count("```python") + text.count("```toml") >= 4
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    ((name, module),) = project["entry-points"]["harness"].items()

    monkeypatch.syspath_prepend(tmp_path / "src")
    found = Registry([EntryPoint(name, module, "harness")])
    assert found.states[-1].problem is None
    spec, *_ = [one for one in found.specs(kind) if found.owner(kind, one.name) == name]
    assert isinstance(load(spec), type) and isinstance(spec, KINDS[kind][1])

    metadata = (
        tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    )
    metadata.mkdir(parents=True)
    package_info = (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (metadata / "METADATA").write_text(package_info)
    (metadata / "entry_points.txt").write_text(f"[harness]\n{name} = {module}\n")
    paths = [
        str(metadata.parent),
        str(tmp_path / "src"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(tmp_path / "tests"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
