"""Runs the jobs of a study one after the other, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.results.folder import RunFolder
from harness.study.plan import Job
from harness.study.state import Step, StudyFolder, now

POLL_S = 0.5
STOP_S = 45.0
"""How long an interrupted training may take to write down what it has."""


@dataclass
class Standing:
    """Where one job of the matrix stands, for a display.

    Attributes:
        state: `waiting`, `running`, `finished`, `failed`, `interrupted` or `skipped`.
        line: The newest line that its process printed, or what came of it.
    """

    job: Job
    state: str = "waiting"
    line: str = ""
    began: float | None = None
    wall_s: float | None = None


class StudyRun:
    """One launch of a study.

    Args:
        on_change: Called with all standings whenever something changed, about twice a second.
        command: How `harness` is started.
    """

    def __init__(
        self,
        folder: StudyFolder,
        steps: Sequence[Step],
        on_change: Callable[[list[Standing]], None],
        command: Sequence[str] = (sys.executable, "-m", "harness"),
    ) -> None:
        self._folder = folder
        self._steps = steps
        self._command = list(command)
        self._on_change = on_change
        self.standings = [Standing(step.job) for step in steps]

    def execute(self) -> list[Standing]:
        """Do what is missing; a failed job does not stop the others.

        Raises:
            KeyboardInterrupt: After the running job was ended and its state written.
        """
        self._folder.launches.append({"started": now()})
        for step, standing in zip(self._steps, self.standings, strict=True):
            if step.action == "skip":
                standing.state = "skipped"
                self._folder.set(step.job, "finished", step.folder)
        self._folder.write()
        for step, standing in zip(self._steps, self.standings, strict=True):
            if step.action == "skip":
                continue
            if step.action == "wait":
                self._wait_for(step, standing)
            parent = self._parent(step.job)
            if step.job.kind == "eval" and parent is None:
                standing.state, standing.line = "failed", "the training that it evaluates did not finish"
                self._folder.set(step.job, "failed")
            elif standing.state == "waiting":
                self._run(step, standing, parent)
            self._on_change(self.standings)
        self._folder.launches[-1]["ended"] = now()
        self._folder.write()
        return self.standings

    def _run(self, step: Step, standing: Standing, parent: Path | None) -> None:
        job, folder = step.job, self._folder.path
        log = folder / "logs" / f"{job.key}.log"
        log.parent.mkdir(exist_ok=True)
        known = {path.parent.name for path in folder.glob("*/config.yaml")}
        with log.open("ab") as out:
            size = out.tell()
            process = subprocess.Popen(
                [*self._command, *self._arguments(step, parent)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"},
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        standing.state, standing.began = "running", time.monotonic()
        run = step.folder
        import psutil

        handle = psutil.Process(process.pid)
        self._folder.set(job, "running", run, handle)
        try:
            while process.poll() is None:
                if run is None:
                    run = next(
                        (one.parent for one in folder.glob("*/config.yaml") if one.parent.name not in known), None
                    )
                    if run is not None:
                        self._folder.set(job, "running", run, handle)
                standing.line = last_line(log, size) or standing.line
                self._on_change(self.standings)
                time.sleep(POLL_S)
        except BaseException:
            self._stop(process)
            self._folder.set(job, "interrupted", run)
            raise
        run = run or next((one.parent for one in folder.glob("*/config.yaml") if one.parent.name not in known), None)
        self._note(job, standing, run, process.returncode, last_line(log, size))

    def _note(self, job: Job, standing: Standing, run: Path | None, code: int, line: str) -> None:
        record = RunFolder(run).read() if run is not None and (run / "run.json").is_file() else {}
        status = record.get("status", "failed")
        standing.state = "finished" if status == "finished" and code == 0 else "failed"
        if standing.state == "failed" and status in ("running", "interrupted"):
            status = "interrupted"
        reason = record.get("reason") or line or f"ended with status {code} and said nothing"
        standing.line = _outcome(record) if standing.state == "finished" else reason
        standing.wall_s = None if standing.began is None else time.monotonic() - standing.began
        self._folder.set(job, "finished" if standing.state == "finished" else status, run)

    def _arguments(self, step: Step, parent: Path | None) -> list[str]:
        job, folder = step.job, self._folder.path
        if job.kind == "eval":
            return ["eval", str(parent), "--plugin", job.config.plugin, "--runs-dir", str(folder)]
        if step.action == "resume":
            return ["train", "--resume", str(step.folder)]
        file = folder / "configs" / f"{job.key}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(job.config.dump(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        return ["train", "--config", str(file), "--runs-dir", str(folder)]

    def _parent(self, job: Job) -> Path | None:
        if job.parent is None:
            return None
        entry = self._folder.entries.get(job.parent, {})
        return self._folder.path / entry["run"] if entry.get("state") == "finished" and entry.get("run") else None

    def _wait_for(self, step: Step, standing: Standing) -> None:
        """An earlier launch was killed and its training goes on: let it end, then go on from what it left."""
        import psutil

        standing.state, standing.line, standing.began = "running", step.why, time.monotonic()
        while step.pid is not None and psutil.pid_exists(step.pid):
            self._on_change(self.standings)
            time.sleep(POLL_S)
            if psutil.pid_exists(step.pid) and psutil.Process(step.pid).status() == psutil.STATUS_ZOMBIE:
                break
        again = self._folder.next_steps([step.job])[0]
        step.action, step.folder = again.action, again.folder
        if again.action == "skip":
            standing.state, standing.line = "finished", "by an earlier launch"
            self._folder.set(step.job, "finished", again.folder)
        else:
            standing.state = "waiting"

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        """End a job as Ctrl-C would, so that it can be resumed; then by force."""
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not orphan it
        try:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)


def last_line(log: Path, since: int = 0) -> str:
    """The last line of a log that says something, from byte `since` on."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(since, file.tell() - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _outcome(record: dict[str, object]) -> str:
    from harness.cli.common import percent

    result = record.get("result")
    if not isinstance(result, dict):
        return ""
    if record.get("kind") == "eval":
        return f"accuracy {percent(result.get('accuracy'))}"
    return f"accuracy {percent(result.get('val_accuracy_initial'))} -> {percent(result.get('val_accuracy_final'))}"
