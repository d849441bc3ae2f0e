"""The hash of an agent in a file covers the files of its folder that its code names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.parity.certificate import fingerprint
from harness.plugins.one_file import named_files, sources

CODE = """
from pathlib import Path

PROMPT = {reading}
raise RuntimeError("imported")


class Mine:
    program = "self_correcting_sql"
"""


def written(folder: Path, reading: str) -> str:
    """Write an agent next to two texts and return its name."""
    (folder / "mine.py").write_text(CODE.format(reading=reading), encoding="utf-8")
    (folder / "texts").mkdir()
    (folder / "prompt.txt").write_text("Be brief.", encoding="utf-8")
    (folder / "texts" / "system.md").write_text("You write SQL.", encoding="utf-8")
    return f"{folder / 'mine.py'}:Mine"


def names(agent: str) -> list[str]:
    return [name for name, _ in named_files(agent, sources(agent))]


def source(agent: str) -> str:
    return fingerprint(agent)["agent_source"]


@pytest.mark.parametrize(
    ("reading", "name"),
    [
        ('(Path(__file__).parent / "prompt.txt").read_text()', "prompt.txt"),
        ('open(Path(__file__).with_name("prompt.txt"), "rb").read()', "prompt.txt"),
        ('Path(__file__).with_name("texts/system.md").read_text()', "texts/system.md"),
        ("__import__('helper').PROMPT", ""),
    ],
)
def test_a_file_that_the_code_names_is_part_of_the_source(
    tmp_path: Path, reading: str, name: str
) -> None:
    agent = written(tmp_path, reading)
    assert names(agent) == ([name] if name else [])
    first = source(agent)
    assert source(agent) == first
    (tmp_path / "prompt.txt").write_text("Be thorough.", encoding="utf-8")
    (tmp_path / "texts" / "system.md").write_text("You write short SQL.", encoding="utf-8")
    assert (source(agent) != first) == bool(name)


def test_an_imported_module_may_name_the_file(tmp_path: Path) -> None:
    agent = written(tmp_path, "helper.PROMPT\nimport helper")
    (tmp_path / "helper.py").write_text("PROMPT = open('prompt.txt').read()\n")
    assert names(agent) == ["prompt.txt"]


@pytest.mark.parametrize(
    "reading", ['"mine.py"', '"../foreign.txt"', '"texts"', '"/etc/hostname"', '"a\\0b"', "''"]
)
def test_other_texts_name_no_file_of_the_source(tmp_path: Path, reading: str) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (tmp_path / "foreign.txt").write_text("foreign")
    agent = written(folder, reading)
    assert names(agent) == []
    code = (folder / "mine.py").read_bytes()
    assert source(agent) == hashlib.sha256(b"mine.py\0" + code + b"\0").hexdigest()[:16]
