"""The timeline of a start: events of several processes in one file, whole JSON at the end, nothing without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.util import start_trace

CHILD = """
import time
from harness.util import start_trace
for _ in range(2):
    start_trace.born("child")
with start_trace.span("work"):
    time.sleep(0.05)
for _ in range(2):
    start_trace.mark("useful")
"""


def test_every_process_says_what_it_did(tmp_path: Path) -> None:
    file = tmp_path / "start.json"
    with start_trace.recorded(file):
        start_trace.born("parent")
        began = time.time()
        subprocess.run([sys.executable, "-c", CHILD], check=True)
        with file.open("a") as torn:
            torn.write('{"name": "killed while it wr')
    assert start_trace.VARIABLE not in os.environ
    events = json.loads(file.read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names[os.getpid()] == "parent" and sorted(names.values()) == ["child", "parent"]
    child = [event for event in events if names[event["pid"]] == "child" and event["ph"] != "M"]
    assert [(event["name"], event["ph"]) for event in child] == [
        ("Python and imports", "X"),
        ("work", "X"),
        ("useful", "i"),
    ]
    imports, work, _ = child
    assert 5e4 <= work["dur"] < 5e6 and imports["dur"] > 0
    # Since its creation, which the kernel knows to a hundredth of a second.
    assert (
        abs(imports["ts"] / 1e6 - began) < 5 and imports["ts"] + imports["dur"] <= work["ts"] + 2e4
    )


def test_without_it_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start_trace.born("nobody")
    with start_trace.span("nothing"):
        start_trace.mark("nothing")
    assert not list(tmp_path.iterdir())
