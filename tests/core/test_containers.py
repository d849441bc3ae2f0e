"""The container files, without building them: pinned bases, steps that uv can carry out, no root at the end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FILES = sorted((REPO / "containers").glob("Containerfile.*"))
UV = next(
    (
        path
        for path in (REPO / ".uv" / "bin" / "uv", shutil.which("uv"))
        if path and Path(path).is_file()
    ),
    None,
)
Steps = list[tuple[str, str]]


def steps(file: Path) -> Steps:
    """Instruction and text of every step, lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", file.read_text())
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def synced(file: Path) -> tuple[list[str], dict[str, str]]:
    """The step that installs, as arguments, and the variables that hold there."""
    variables: dict[str, str] = {}
    for name, text in steps(file):
        if name == "ENV":
            variables |= dict(one.split("=", 1) for one in shlex.split(text))
        if name == "RUN" and text.startswith("uv sync"):
            return shlex.split(text), variables
    raise AssertionError(f"{file.name} installs nothing")


def test_there_is_one_for_processors_and_one_for_gpus() -> None:
    assert [file.suffix for file in FILES] == [".cpu", ".cuda"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])
def test_bases_are_pinned_and_nothing_runs_as_root(file: Path) -> None:
    found = steps(file)
    names = [name for name, _ in found]
    assert {*names} <= {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT"}
    bases = [text.split()[0] for name, text in found if name == "FROM"]
    supported = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["requires-python"]
    assert supported == ">=3.11,<3.14"
    assert len({*bases}) == 1 and re.fullmatch(
        r"docker\.io/library/python:3\.1[123]\.\d+-slim-\w+", bases[0]
    )
    last = found[len(names) - 1 - names[::-1].index("FROM") :]
    settings = dict(last)
    assert (
        settings["USER"] == "harness"
        and "useradd --create-home --uid 10001 harness" in settings["RUN"]
    )
    assert [name for name, _ in last].index("USER") > [name for name, _ in last].index("RUN")
    assert settings["ENTRYPOINT"] == '["harness"]'
    assert sum(name in ("RUN", "COPY") for name, _ in last) <= 3
    assert not [
        text for _, text in found if re.search(r"(?i)(key|token|secret|password)\S*=", text)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])
def test_the_uv_that_installs_reads_the_lock_and_knows_the_extras(file: Path) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    arguments, variables = synced(file)
    extras = {arguments[place + 1] for place, one in enumerate(arguments) if one == "--extra"}
    assert extras == {file.suffix[1:].replace("cuda", "gpu"), "plugins"}
    assert extras <= set(project["project"]["optional-dependencies"])
    assert {"--frozen", "--no-dev", "--no-editable"} <= {*arguments}
    copied = dict(steps(file))["COPY"].split()
    assert copied == ["--from=build", *[variables["UV_PROJECT_ENVIRONMENT"]] * 2]
    (pin,) = [found for _, text in steps(file) for found in re.findall(r"uv==(\S+)", text)]
    assert tuple(map(int, pin.split("."))) >= (0, 9)  # tool.uv.required-version


@pytest.mark.skipif(UV is None, reason="no uv here: make .uv/bin/uv")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])
def test_the_step_that_installs_can_be_carried_out_in_a_clean_folder(
    file: Path, tmp_path: Path
) -> None:
    """As uv plans it: nothing is downloaded or written."""
    sources = [
        REPO / "pyproject.toml",
        REPO / "uv.lock",
        *(REPO / "plugins").glob("*/pyproject.toml"),
        *(REPO / "contrib").glob("*/pyproject.toml"),
    ]
    for source in sources:
        target = tmp_path / "project" / source.relative_to(REPO)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    arguments, variables = synced(file)
    there = variables | {
        "UV_PROJECT_ENVIRONMENT": str(tmp_path / "environment"),
        "UV_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [str(UV), *arguments[1:], "--dry-run", "--offline"],
        cwd=tmp_path / "project",
        env={**os.environ, **there},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    planned = set(re.findall(r"^ \+ ([\w.-]+?)[=@ ]", done.stderr, re.MULTILINE))
    members = {
        tomllib.loads(one.read_text())["project"]["name"]
        for one in sources
        if one.parent.parent.name in ("plugins", "contrib")
    }
    assert members - planned == set(), done.stderr[-2000:]
    assert ("vllm" in planned) == (file.suffix == ".cuda") and not planned & {
        "pytest",
        "mypy",
        "ruff",
    }
    assert not (tmp_path / "environment").exists()
