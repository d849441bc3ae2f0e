"""Files that commands write with `--out`: whole, or not at all."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.runs.output import write_output

Command = Callable[..., subprocess.CompletedProcess[str]]
EARLIER = "an earlier comparison\n"


@pytest.mark.parametrize("arguments", [("compare", "--format", "json"), ("report",)])
def test_a_full_disk_leaves_the_existing_file_as_it_was(
    arguments: tuple[str, ...],
    command: Command,
    write_run: Callable[..., Any],
    small_disk: Callable[[str], Path],
    fill: Callable[..., Path],
) -> None:
    run = write_run("reference_sql", kind="eval").path
    disk = small_disk("1m")
    kept = disk / "keep.md"
    kept.write_text(EARLIER)
    filler = fill(disk)
    done = command(*arguments, run, "--out", kept)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"cannot write {kept}: No space left on device" in done.stderr
    assert kept.read_text() == EARLIER
    assert sorted(disk.iterdir()) == [filler, kept]


def test_a_link_and_the_permissions_of_its_file_stay(tmp_path: Path) -> None:
    named = tmp_path / "named.md"
    named.write_text("earlier")
    link = tmp_path / "link.md"
    link.symlink_to(named)
    for mode in (0o600, 0o666):  # the second is wider than a usual umask permits
        named.chmod(mode)
        write_output(link, "later")
        assert link.is_symlink() and named.read_text() == "later"
        assert named.stat().st_mode & 0o777 == mode


def test_standard_output_that_others_write_to_is_not_replaced(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from harness.runs.output import write_output; "
        "write_output(Path('/dev/stdout'), 'one\\n')"
    )
    target = tmp_path / "all.txt"
    command = f"{{ {shlex.join([sys.executable, '-c', code])}; echo two; }} >> {target}"
    subprocess.run(["bash", "-c", command], check=True)
    assert "two" in target.read_text()


def test_a_pipe_and_a_new_folder_are_written_to(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    write_output(Path(f"/dev/fd/{writing}"), "through a pipe")
    assert os.read(reading, 100) == b"through a pipe"
    os.close(reading)
    os.close(writing)
    write_output(tmp_path / "new" / "folder" / "out.md", "text")
    assert (tmp_path / "new" / "folder" / "out.md").read_text() == "text"
