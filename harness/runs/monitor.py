"""Follow a run by its rows: report progress, and stop a run with too many failed rollouts."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from harness.errors import RunFailed
from harness.records import AGENT_OUTCOMES
from harness.runs.folder import Kind, RunFolder
from harness.runs.progress import Progress
from harness.runs.row_checks import parse_row
from harness.runs.rows import Episode, LoggedStep
from harness.runs.schema import RunRecord
from harness.runs.training_signal import OMITTED, least_to_train, teaches
from harness.util.formatting import (
    duration,
    is_graded,
    mean,
    measured,
    most_often,
    unparsed,
    unread,
)
from harness.util.parsing import finite_or_null
from harness.util.tool_calls import tools_unused

LEAST_S = 1.0
"""Shortest time, in seconds, that a rate is computed over."""
FLAT_STEPS = 3
"""Number of consecutive steps without a gradient that triggers a warning."""


class Follower:
    """Reads new rows of `episodes` and `steps` on each call.

    Args:
        total_steps: Steps of the training; 0 for an evaluation.
        expected: Rollouts of one training step and of one validation.
        graded: Whether the reward declares that its mean is no accuracy.
        least: Lowest reward of a rollout that is trained on, if the best are chosen.
    """

    def __init__(
        self,
        folder: RunFolder,
        total_steps: int,
        expected: dict[str, int],
        *,
        graded: bool = False,
        least: float | None = None,
    ) -> None:
        self._least = least
        self._folder = folder
        self._expected = expected
        self.offsets: dict[Path, int] = {}
        """How much of each file has been read, in bytes."""
        self._lines = Counter[Path]()
        """How many lines of each file have been read."""
        self._rewards: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._flat: list[int] = []
        self._failed: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._why: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._unread = Counter[tuple[str, int]]()
        self._offered = Counter[tuple[str, int]]()
        self._parsed = Counter[tuple[str, int]]()
        self._own: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._mute = Counter[tuple[str, int]]()
        self._step_s: list[float] = []
        self._first: float | None = None
        self._fresh = 0
        # For each validation, from its first start to its last end.
        self._spans: dict[int, tuple[float, float]] = {}
        self.progress = Progress(total_steps=total_steps, graded=graded)

    @classmethod
    def of(cls, folder: RunFolder, record: RunRecord) -> Self:
        """Follows a run from outside, by its record."""
        identity = record["identity"]
        train = identity["train"]
        rollouts = {
            "train": train.get("batch_size", 0) * identity["group_size"],
            "val": record["tasks"]["val"] * identity.get("samples", 1),
        }
        graded, least = record.get("graded", False), least_to_train(train)
        return cls(folder, identity["steps"], rollouts, graded=graded, least=least)

    def look(self) -> Progress:
        """Read new rows and return the progress."""
        self._read()
        state = self.progress
        if self._first is not None and (since_s := time.monotonic() - self._first) >= LEAST_S:
            state.rollouts_per_s = self._fresh / since_s
        state.remaining_s = None
        # The median, since a step with a checkpoint takes longer than others.
        if self._step_s:
            state.step_s = self._step_s[-1]
            left = state.total_steps - state.step
            state.remaining_s = left * statistics.median(self._step_s[-10:])
        began_training = bool(self._step_s) or not state.total_steps
        # The first validation shows nothing about the duration of the training.
        if state.validating is not None and state.validating in self._spans and began_training:
            began, last = self._spans[state.validating]
            rest_s = (last - began) / state.done * (state.expected - state.done)
            state.remaining_s = max(rest_s, state.remaining_s or 0.0)
        so_far = self._rewards[("val", state.validating)] if state.validating is not None else []
        state.val_so_far = statistics.fmean(so_far) if so_far else None
        return state

    def _read(self) -> None:
        for row in self.new_rows("episodes"):
            self._episode(row)
        for row in self.new_rows("steps"):
            self._logged(row)

    def new_rows(self, kind: Kind) -> list[Any]:
        """Return the rows written since the last call, file by file.

        A partial line waits for the next call.

        Raises:
            UserError: A complete line is no row. No row of this call counts as read.
        """
        rows = []
        offsets: dict[Path, int] = {}
        counts = Counter[Path]()
        for path in sorted(self._folder.logs.glob(f"{kind}-*.jsonl")):
            with path.open("rb") as file:
                file.seek(self.offsets.get(path, 0))
                data = file.read()
            # Another process may be in the middle of a line.
            whole = data[: data.rfind(b"\n") + 1]
            offsets[path] = self.offsets.get(path, 0) + len(whole)
            lines = whole.split(b"\n")[:-1]
            counts[path] = len(lines)
            for number, line in enumerate(lines, self._lines[path] + 1):
                rows.append(parse_row(line, kind, path, number))
        self.offsets |= offsets
        self._lines += counts
        return rows

    def _episode(self, row: Episode) -> None:
        state = self.progress
        phase, step = row["phase"], row["step"]
        self._first = self._first or time.monotonic()
        self._fresh += 1
        state.rollouts += 1
        key = (phase, step)
        if row["reward"] is None:
            name = row["outcome"] if row["outcome"] != "ok" else "unscored"
            self._failed[key][name] += 1
            self._why[key][row["reward_reason"]] += 1
            state.failures[name] = state.failures.get(name, 0) + 1
        else:
            self._rewards[key].append(row["reward"])
            state.graded = state.graded or is_graded([row["reward"]])
        # Whether a group teaches depends on what was trained on, which controls exchange.
        used = row.get("used_reward", row["reward"])
        if phase == "train" and used is not None:
            self._groups[step][row["task_id"]].append(used)
        state.phase = f"step {step}"
        if phase == "val":
            # An evaluation has no steps.
            state.phase = f"validating after step {step}" if state.total_steps else "validating"
        done = len(self._rewards[key]) + sum(self._failed[key].values())
        state.done, state.expected = done, self._expected[phase]
        whole = done >= self._expected[phase]
        state.validating = step if phase == "val" and not whole else None
        if phase == "val" and whole and self._rewards[key]:
            state.val_curve[step] = statistics.fmean(self._rewards[key])
        # A damaged row may lack its times: figures are finite or null where they are read.
        timed = row.get("started_s") is not None and row.get("elapsed_s") is not None
        if state.validating is not None and timed:
            began, last = self._spans.get(step, (row["started_s"], 0.0))
            self._spans[step] = (
                min(began, row["started_s"]),
                max(last, row["started_s"] + row["elapsed_s"]),
            )
        self._unread[key] += bool(row.get("unread_calls"))
        self._offered[key] += bool(row.get("calls_with_tools"))
        self._parsed[key] += bool(row.get("parsed_calls"))
        if row["outcome"] in AGENT_OUTCOMES:
            self._own[key][row["reward_reason"]] += 1
            self._mute[key] += not row["transitions"]
        # One warning a run. What the model cannot do comes first, since it explains the failures.
        if done == self._expected[phase] and not state.warning:
            own = self._own[key].total()
            unread_in, offered_in = self._unread[key], self._offered[key]
            if unread_in and tools_unused(offered_in, self._parsed[key]):
                remark = unparsed(unread_in, self._parsed[key], offered_in)
                state.warning = f"{state.phase}: {remark}."
            elif remark := unread(unread_in, done):
                state.warning = f"{state.phase}: {remark}."
            elif own > 0.1 * done:
                state.warning = (
                    f"{state.phase}: the agent itself ended {own} of {done} rollouts, "
                    "which count as wrong. "
                    f"{most_often(self._own[key])}"
                )

    def _logged(self, row: LoggedStep) -> None:
        data, step = row["data"], row["step"]
        if (step_s := finite_or_null(data.get("step_s"))) is not None:
            known, self.progress.step = self.progress.step, max(step, self.progress.step)
            self._step_s.append(step_s)
            rewards = self._rewards.get(("train", self.progress.step))
            self.progress.reward = sum(rewards) / len(rewards) if rewards else None
            if step > known:
                self._heed_signal(step)
            if step > known and "taught_calls" in data:
                self._without_rollouts(step, data)

    def _without_rollouts(self, step: int, data: Mapping[str, float | None]) -> None:
        """Take in a step that trained gold answers; no rollout shows that it is over."""
        state = self.progress
        # Rollouts are read before steps, so a validation after this step may have been read.
        if state.validating is None or state.validating < step:
            state.phase, state.done, state.expected = f"step {step}", 0, 0
            state.validating = None
        left_out = finite_or_null(data.get("left_out"))
        if left_out and not state.warning:
            state.warning = f"step {step}: {left_out:.0f} tasks are not trained: {OMITTED}."

    def _heed_signal(self, step: int) -> None:
        """Warn after several steps without a gradient."""
        groups: list[bool] = []
        for rewards in self._groups.pop(step, {}).values():
            # A single reward has nothing to differ from; its group counts neither way.
            if len(rewards) > 1:
                groups.append(teaches(rewards, self._least))
        self.progress.mixed = sum(groups) / len(groups) if groups else None
        self._flat = [*self._flat, step] if self.progress.mixed == 0 else []
        if len(self._flat) < FLAT_STEPS:
            self.progress.remark = ""
        elif not self.progress.remark:
            why = "all rollouts of each task have equal rewards"
            if self._least is not None:
                why = (
                    f"no rollout has a reward of {self._least:g} or more "
                    "(train.rejection_threshold)"
                )
            self.progress.remark = (
                f"steps {self._flat[0]} to {step}: {why}, so rewards give no gradient. "
                "Try easier tasks, a larger "
                "rollout.group_size or a higher sampling.temperature"
            )


class Monitor(Follower):
    """Follows a run from within, and stops it if too many rollouts fail.

    Args:
        max_failed_share: The run stops if the share of failed or unscored rollouts in a step
            exceeds this.
    """

    def __init__(
        self,
        folder: RunFolder,
        total_steps: int,
        expected: dict[str, int],
        max_failed_share: float,
        *,
        graded: bool = False,
        least: float | None = None,
    ) -> None:
        super().__init__(folder, total_steps, expected, graded=graded, least=least)
        self._max_failed_share = max_failed_share
        self._read()  # rows of earlier launches are known, but do not count as speed
        self._fresh, self._first, self._step_s = 0, None, []
        self.progress.phase, self.progress.remark, self.progress.warning, self._flat = (
            "starting",
            "",
            "",
            [],
        )
        self._failed.clear()  # failures of earlier launches were reported then
        self._why.clear()
        self._mute.clear()

    def poll(self) -> Progress:
        """Read new rows and return the progress.

        Raises:
            RunFailed: Too many rollouts of a step failed, or the agent ended all of them before its
                first call.
        """
        state = self.look()
        for (phase, step), counts in self._failed.items():
            failed = sum(counts.values())
            if failed > self._max_failed_share * self._expected[phase]:
                what = ", ".join(f"{name} {count}" for name, count in counts.most_common())
                raise RunFailed(
                    f"step {step} ({phase}): {failed} of {self._expected[phase]} "
                    "rollouts brought no usable result "
                    f"({what}), {over_the_limit(self._max_failed_share, self._why[(phase, step)])} "
                    f"Details: `detail` in {self._folder.path / 'episodes.parquet'}"
                )
        for (phase, step), mute in self._mute.items():
            if mute == self._expected[phase] > 1:
                raise RunFailed(
                    f"step {step} ({phase}): the agent itself ended all {mute} "
                    "rollouts before the model "
                    f"answered once, so there is nothing to learn from. "
                    f"{most_often(self._own[(phase, step)])} "
                    f"Details: `detail` in {self._folder.path / 'episodes.parquet'}"
                )
        return state


def over_the_limit(max_failed_share: float, reasons: Counter[str]) -> str:
    """Return text that continues a sentence: the exceeded limit, then the most common reason."""
    return f"more than rollout.max_failed_share={max_failed_share:g} allows. {most_often(reasons)}"


def steps_of(progress: Progress) -> str:
    """Return `12 of 20`, or a dash if nothing is trained."""
    return f"{progress.step} of {progress.total_steps}" if progress.total_steps else "-"


def so_far(progress: Progress) -> str:
    """Return `53.4 % so far (112 of 240)` during a validation, otherwise an empty text."""
    if progress.validating is None:
        return ""
    return (
        f"{mean(progress.val_so_far, progress.graded)} so far "
        f"({progress.done} of {progress.expected})"
    )


def cells(progress: Progress) -> dict[str, str]:
    """Return progress as table cells: step, reward, accuracy or mean reward, and time left."""
    last = max(progress.val_curve, default=None)
    return {
        "step": steps_of(progress),
        "reward": "" if progress.reward is None else f"{progress.reward:.3f}",
        measured(progress.graded): so_far(progress)
        or ("" if last is None else mean(progress.val_curve[last], progress.graded)),
        "left": "" if progress.remaining_s is None else duration(progress.remaining_s),
    }


def standing(progress: Progress) -> str:
    """Return `step 12 of 20, reward 0.412, accuracy 53.4 % after step 10, left 3 min 20 s`."""
    trained = bool(progress.total_steps)
    validated = max(progress.val_curve, default=None)
    # An evaluation has no steps.
    values: list[str] = []
    if validated is not None:
        value = mean(progress.val_curve[validated], progress.graded)
        values.append(f"{value} after step {validated}" if trained else value)
    if progress.validating is not None:
        value = so_far(progress)
        values.append(f"{value} after step {progress.validating}" if trained else value)
    parts = []
    if trained:
        parts.append(f"step {steps_of(progress)}")
    if progress.reward is not None:
        parts.append(f"reward {progress.reward:.3f}")
    if values:
        parts.append(f"{measured(progress.graded)} {', '.join(values)}")
    if progress.remaining_s is not None:
        parts.append(f"left {duration(progress.remaining_s)}")
    return ", ".join(parts)
