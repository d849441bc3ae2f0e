"""The sides of a run as processes that a test starts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from harness.mock_model.server import ReceivedRequest, Reply
from harness.runs.folder import RunFolder

TASKS = 24
EVALUATION = (
    *("eval", "--agent", "reference_sql", "--limit", str(TASKS), "--json"),
    *("--set", "rollout.concurrency=4", "--set", "max_turns=2", "--set", "rollout.retries=1"),
)


class Sides:
    """Processes of `harness` that a test starts, all with one key file; none is left after it."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self.endpoint = folder, endpoint
        self.key_file = folder / "cache" / "store.key"
        self.store_log = folder / "store.log"
        self._all: list[subprocess.Popen[str]] = []
        self.move()

    def move(self) -> None:
        """Another address of the store from now on: it comes back there, and others are told it before."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"

    def start(self, *arguments: str | Path, log: str) -> subprocess.Popen[str]:
        """With its output in a file."""
        variables = os.environ | {
            "HARNESS_CACHE_DIR": str(self.key_file.parent),
            "HARNESS_TEST_SIDES": str(self.folder),
        }
        with (
            (self.folder / log).open("ab") as output,
            (self.folder / f"{log}.err").open("ab") as errors,
        ):
            command = [sys.executable, "-m", "harness", *map(str, arguments)]
            process = subprocess.Popen(
                command, stdout=output, stderr=errors, text=True, env=variables, cwd=self.folder
            )
        self._all.append(process)
        return process

    def store(self) -> subprocess.Popen[str]:
        return self.start("store", "--port", self.url.rpartition(":")[2], log="store.log")

    def evaluation(
        self, *more: str | Path, runners: int = 0, log: str = "eval", apart: bool = True
    ) -> subprocess.Popen[str]:
        asked = (
            "--endpoint",
            self.endpoint,
            "--set",
            f"rollout.runners={runners}",
            "--runs-dir",
            self.folder / "runs",
        )
        return self.start(
            *EVALUATION, *asked, *(("--store", self.url) if apart else ()), *more, log=log
        )

    def runner(self, *more: str, log: str = "runner") -> subprocess.Popen[str]:
        return self.start("runner", "--store", self.url, "--wait", "300", *more, log=log)

    def output(self, log: str) -> str:
        return "".join(file.read_text() for file in (self.folder / log, self.folder / f"{log}.err"))

    def record(self, log: str = "eval") -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / log).read_text())
        return record

    def rows(self, log: str = "eval") -> dict[tuple[str, int], tuple[Any, ...]]:
        """What counts of each rollout of an evaluation, by task and session."""
        folder = RunFolder.open(self.folder / "runs" / self.record(log)["id"])
        found = [
            (
                (row["task_id"], row["session"]),
                (
                    row["outcome"],
                    row["reward"],
                    row["answer"],
                ),  # an answer of `seeded` tells the seed
            )
            for row in folder.rows("episodes")
        ]
        assert len(found) == len(dict(found)), "a rollout has several rows"
        return dict(found)

    def end(self) -> None:
        """End what is left, and see that nothing else is."""
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        for process in self._all:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        wait_for(lambda: not self.left(), 60, lambda: f"left: {self.left()}")

    def left(self) -> list[psutil.Process]:
        """Processes that any of ours started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HARNESS_TEST_SIDES") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def wait_for(
    condition: Callable[[], Any], limit_s: float = 240, output: Callable[[], str] = str
) -> Any:
    """What a condition gives, once it holds; after the limit, `output` has what was printed."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not in {limit_s} s: {output()[-3000:]}")


def seeded(request: ReceivedRequest) -> Reply | str:
    """What a policy says that is right now and then: its words follow from question and seed alone."""
    time.sleep(0.15)
    question = str(re.findall(r"Question: (.*)", str(request.messages[-1]["content"])))
    if "You check" in str(request.messages[0]["content"]):
        return "THE QUERY IS CORRECT."
    from harness_sql.tasks.pocket import PocketTasks

    gold = next(
        (task.gold for task in PocketTasks().load("val") if task.question in question), "SELECT 1"
    )
    return f"```sql\n{gold if (int(request.body['seed']) + len(question)) % 2 else 'SELECT 1'}\n```"
