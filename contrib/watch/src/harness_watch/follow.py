"""Follow a growing run folder: read new rows, and the record after changes."""

from __future__ import annotations

import math
import mmap
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import polars as pl

from harness.errors import UserError
from harness.runs.folder import Kind, RunFolder
from harness.runs.monitor import Follower
from harness.runs.progress import Progress
from harness.runs.reading import KILLED, Run
from harness.runs.row_checks import parse_row
from harness.runs.rows import Call, Episode, LoggedStep
from harness.runs.tables import episodes_table, step_rows, steps_table

QUIET_S = 10.0
"""Interval of checks whether a process holds a run that writes nothing."""
MOST_CHUNKS = 100
"""Maximum number of chunks of a growing table before it is rechunked."""
GROWING = ("logs/episodes-*.jsonl", "logs/steps-*.jsonl")
TABLES = ("*.parquet",)
GONE = "The folder is gone; this is what it held."
LEFT = (
    "No process on this machine holds the run: it was killed, or runs on another. "
    "harness train --resume continues it."
)


class Feed(Follower):
    """Follows a run and keeps its rows as tables, which grow by what is new."""

    def __init__(
        self,
        folder: RunFolder,
        total_steps: int,
        expected: dict[str, int],
        *,
        graded: bool = False,
        least: float | None = None,
    ) -> None:
        super().__init__(folder, total_steps, expected, graded=graded, least=least)
        self.episodes = pl.DataFrame(episodes_table([]))
        self._logs: dict[int, list[LoggedStep]] = defaultdict(list)
        self._steps: dict[int, dict[str, float]] = {}
        self._fresh_rows: dict[Kind, list[Any]] = {}

    def new_rows(self, kind: Kind) -> list[Any]:
        self._fresh_rows[kind] = super().new_rows(kind)
        return self._fresh_rows[kind]

    def look(self) -> Progress:
        state = super().look()
        episodes = cast("list[Episode]", self._fresh_rows["episodes"])
        if episodes:
            more = pl.DataFrame(episodes_table(episodes))
            self.episodes = pl.concat(
                [self.episodes, more], rechunk=self.episodes.n_chunks() > MOST_CHUNKS
            )
        for row in cast("list[LoggedStep]", self._fresh_rows["steps"]):
            self._logs[row["step"]].append(row)
        touched: set[int] = set()
        for rows in self._fresh_rows.values():
            touched.update(row["step"] for row in rows)
        # A step's row is computed from all of its episodes, so those read earlier count as well.
        of_steps = self.episodes.filter(pl.col("step").is_in(list(touched)))
        episodes_again = cast("list[Episode]", of_steps.drop("tool_calls").to_dicts())
        logged: list[LoggedStep] = []
        for step in touched:
            logged += self._logs.get(step, ())
        for step_row in step_rows(logged, episodes_again):
            self._steps[int(step_row["step"])] = step_row
        return state

    @property
    def steps(self) -> pl.DataFrame:
        """Return one row per step, as in `harness.runs.tables`.

        The current step has no figures of its rollouts.
        """
        whole = self.whole
        rows = []
        for step in sorted(self._steps):
            row = self._steps[step]
            if row["step"] > whole:
                row = {key: figure for key, figure in row.items() if not key.startswith("rollout/")}
            rows.append(row)
        return pl.DataFrame(steps_table(rows))

    @property
    def whole(self) -> int:
        """The last step with all rollouts ended. Those that end first are short and say little."""
        ended = {}
        for step, row in self._steps.items():
            if "rollout/rollouts" in row:
                ended[step] = row["rollout/rollouts"]
        last = max(ended, default=0)
        return last if ended.get(last, 0) >= self._expected["train"] else last - 1

    @property
    def rewritten(self) -> bool:
        """Whether a file is shorter than what was read, because a resumption set rows aside."""
        return any(_is_shorter(path, read) for path, read in self.offsets.items())


def _is_shorter(path: Path, read: int) -> bool:
    return not path.exists() or path.stat().st_size < read


class Followed:
    """A run folder. `look` returns the same `Run` until something changes in it.

    Attributes:
        run: The run as last read; None if it has never been readable.
        trouble: Why it cannot be read or is no longer written; empty without a problem.
        version: Number of reads.
        era: Number of restarts of reading, because rows that were read no longer exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run: Run | None = None
        self.trouble = ""
        self.version = self.era = 0
        self._feed: Feed | None = None
        self._launches = 0
        self._stamp: list[tuple[str, int, int]] = []
        self._quiet_since = -math.inf

    def look(self) -> Run | None:
        """Return the run as its folder has it now."""
        try:
            stamp = self._state()
        except OSError:
            self.trouble, self._stamp, self._feed = GONE, [], None
            return self.run
        if stamp != self._stamp:
            try:
                self._read()
            except (
                UserError,
                ValueError,
                LookupError,
                OSError,
            ) as error:  # halfway through a change, or damaged
                self.trouble = (
                    str(error)
                    if isinstance(error, UserError)
                    else f"{self.path} cannot be read: {error!r}"
                )
                self._feed = None
                return self.run
            self._quiet_since = (
                time.monotonic() if self._stamp else -math.inf
            )  # asked at once at first
            self._stamp, self.trouble, self.version = stamp, "", self.version + 1
        self._ask_who_holds_it()
        return self.run

    def calls(self, attempt: str) -> list[Call] | None:
        """Return an attempt's calls from a running run's logs; None if its tables have them."""
        return None if self._feed is None else calls_of(self.path / "logs", attempt)

    def _state(self) -> list[tuple[str, int, int]]:
        """Return name, time and size of every file that the content depends on."""
        files = [self.path / "run.json"]
        for pattern in (*TABLES, *GROWING):
            files += sorted(self.path.glob(pattern))
        state = []
        for file in files:
            status = file.stat()
            state.append((file.name, status.st_mtime_ns, status.st_size))
        return state

    def _read(self) -> None:
        folder = RunFolder.open(self.path)
        record = folder.read()
        run = Run(folder, record, name=folder.id)
        if record["status"] == "running":
            if (
                self._feed is None
                or self._feed.rewritten
                or len(record["launches"]) != self._launches
            ):
                self._feed, self.era = Feed.of(folder, record), self.era + 1
            run.progress = self._feed.look()
            run.episodes, run.steps, run.transitions = self._feed.episodes, self._feed.steps, None
            run.training = run.episodes.filter(
                pl.col("phase") == "train", pl.col("step") <= self._feed.whole
            )
        else:
            self._feed = None
        self._launches = len(record["launches"])
        if self.run is not None:
            run.arm, run.name = self.run.arm, self.run.name
        self.run = run

    def _ask_who_holds_it(self) -> None:
        """Check by a brief lock whether the process that writes a run still does."""
        if self.run is None or self.run.record["status"] != "running":
            return
        if time.monotonic() - self._quiet_since < QUIET_S:
            return
        self._quiet_since = time.monotonic()
        self.trouble, self.run.state = "", "running"
        if self.run.abandoned():
            self.trouble, self.run.state = LEFT, KILLED
            self.run.progress.remaining_s = None


def calls_of(logs: Path, attempt: str) -> list[Call]:
    """Return an attempt's calls in order by searching row logs, which may be many gigabytes.

    Raises:
        UserError: A line that names the attempt is damaged.
    """
    found: list[Call] = []
    name = f'"{attempt}"'.encode()
    for path in sorted(logs.glob("transitions-*.jsonl")):
        with path.open("rb") as file:
            if not path.stat().st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                number, counted = 1, 0
                at = text.find(name)
                while at >= 0:
                    begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
                    if end < 0:  # half a line
                        break
                    number += _newlines(text, counted, begin)
                    counted = begin
                    row = parse_row(text[begin:end], "transitions", path, number)
                    if row.get("attempt_id") == attempt:
                        # As in tables: null in columns that the row lacks.
                        found.append(cast(Call, dict.fromkeys(Call.__annotations__) | row))
                    at = text.find(name, end)
    return sorted(found, key=lambda row: row["index"] or 0)


def _newlines(text: mmap.mmap, begin: int, end: int) -> int:
    """Count the ends of lines in a part of a file, without a copy of it."""
    count = 0
    at = text.find(b"\n", begin, end)
    while at >= 0:
        count += 1
        at = text.find(b"\n", at + 1, end)
    return count
