"""The hash of an agent in a file covers the files of its folder that it opens while it is imported."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from harness.errors import PluginError
from harness.parity.certificate import fingerprint
from harness.plugins import opened_files as module
from harness.plugins.opened_files import opened_files

CLASS = """
class Mine:
    program = "self_correcting_sql"

    async def solve(self, problem, toolbox):
        return (Path(__file__).parent / "later.txt").read_text()
"""
READS = """
from pathlib import Path
print("a line that is no result")
"""


def written(folder: Path, reading: str, name: str = "mine.py") -> str:
    """Write an agent that runs `reading` at its import; return its name."""
    (folder / name).write_text(READS + reading + CLASS, encoding="utf-8")
    (folder / "prompt.txt").write_text("Be brief.", encoding="utf-8")
    (folder / "later.txt").write_text("SELECT 1", encoding="utf-8")
    return f"{folder / name}:Mine"


def opened(agent: str) -> list[str]:
    return [name for name, _ in opened_files(agent)]


@pytest.mark.parametrize(
    "reading",
    [
        'PROMPT = (Path(__file__).parent / "prompt.txt").read_text()',
        'PROMPT = open(Path(__file__).resolve().parent / "prompt.txt", "rb").read()',
        "import os, sys\nos.open(sys.modules[__name__].__file__[:-7] + 'prompt.txt', os.O_RDONLY)",
        "import pkgutil\nPROMPT = pkgutil.get_data(__name__, 'prompt.txt')",
        'PROMPT = (Path(__file__).parent / "prompt.txt").read_text()\nraise SystemExit(3)',
        "from helper import PROMPT",
    ],
)
def test_a_file_that_the_import_opens_is_part_of_the_source(tmp_path: Path, reading: str) -> None:
    (tmp_path / "helper.py").write_text(
        "from pathlib import Path\nPROMPT = Path(__file__).with_name('prompt.txt').read_text()\n"
    )
    agent = written(tmp_path, reading)
    assert opened(agent) == ["prompt.txt"]
    first = fingerprint(agent)["agent_source"]
    assert fingerprint(agent)["agent_source"] == first
    (tmp_path / "later.txt").write_text("SELECT 2", encoding="utf-8")
    assert fingerprint(agent)["agent_source"] == first
    (tmp_path / "prompt.txt").write_text("Be thorough.", encoding="utf-8")
    assert fingerprint(agent)["agent_source"] != first


def test_other_files_are_no_part_of_the_source(tmp_path: Path) -> None:
    """Neither written and foreign files, nor what an imported library opens for itself."""
    agents, elsewhere = tmp_path / "agents", tmp_path / "elsewhere"
    library = agents / "site" / "a_library"
    library.mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "foreign.txt").write_text("foreign")
    (library / "data.txt").write_text("data")
    (library / "__init__.py").write_text(
        "from pathlib import Path\nDATA = Path(__file__).with_name('data.txt').read_text()\n"
    )
    reading = f"""
import sys
sys.path.append(str(Path(__file__).parent / "site"))
import a_library
open(Path(__file__).parent / "log.txt", "a").write("a line")
open({str(elsewhere / "foreign.txt")!r})
open(__file__)
"""
    assert opened(written(agents, reading)) == []
    assert (agents / "log.txt").is_file()


def test_an_agent_that_opens_nothing_keeps_its_hash_and_is_not_imported(tmp_path: Path) -> None:
    text = 'open_tables = 1\nraise RuntimeError("imported")\n\n\nclass Mine:\n    program = "tool_loop"\n'
    (tmp_path / "mine.py").write_text(text)
    agent = f"{tmp_path / 'mine.py'}:Mine"
    assert opened(agent) == []
    of_code_alone = hashlib.sha256(b"mine.py\0" + text.encode() + b"\0").hexdigest()[:16]
    assert fingerprint(agent)["agent_source"] == of_code_alone


def test_this_process_does_not_import_the_agent(tmp_path: Path) -> None:
    agent = written(tmp_path, 'import this\nPROMPT = open(Path(__file__).with_name("prompt.txt"))')
    sys.modules.pop("this", None)
    assert opened(agent) == ["prompt.txt"]
    assert "this" not in sys.modules


def test_an_import_without_an_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMPORT_S", 3.0)
    agent = written(tmp_path, "import time\ntime.sleep(60)")
    with pytest.raises(PluginError, match=r"mine\.py took more than 3 s\. Move slow work"):
        opened(agent)


def test_an_import_that_ends_its_process_is_named(tmp_path: Path) -> None:
    agent = written(tmp_path, "import os\nos._exit(3)")
    with pytest.raises(PluginError, match=r"mine\.py ended its process with status 3"):
        opened(agent)
