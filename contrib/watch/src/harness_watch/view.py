"""A run, a study or a folder of runs as shown on the page, rebuilt after changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from harness.compare.arm_names import name_arms
from harness.compare.selection import Selection, select
from harness.compare.states import STUDY_FILE, read_state
from harness.errors import UserError
from harness.runs.monitor import standing
from harness.runs.reading import KILLED, Run
from harness_report.episodes import newest, opened
from harness_report.page import (
    COLUMNS,
    Contents,
    blocks,
    by_arm,
    compared,
    contents,
    progress_cells,
)
from harness_watch.follow import GONE, LEFT, Followed

if TYPE_CHECKING:
    from harness.compare.keys import Comparison

EVERY_S = 1.0
"""Minimum interval between reads of the files."""
NEWEST = 200
"""Number of listed episodes."""
MOST_PLACES = 64
"""Number of cached places. The least recently used one is evicted."""
MOST_CHARS = 4096
"""Maximum length of a place's name."""
HERE = "."
"""The root place."""
Mark = tuple[object, ...]
"""A value that is equal while nothing changes."""


class Live(NamedTuple):
    """Live state of a page. `at` and `up` are places; `below` is the prefix of places below it."""

    at: str
    state: str
    message: str
    up: str | None
    below: str
    nonce: str = ""


@dataclass(frozen=True)
class State:
    """The content of a place.

    Attributes:
        charts: As JSON.
        era: A number that changes when shown episodes no longer exist.
    """

    found: Contents
    blocks: Mapping[str, str]
    charts: str
    era: int


class View:
    """The content of a folder. Places are its folders by relative path.

    Args:
        root: A run, a study, or a folder of runs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._followed: dict[Path, Followed] = {}
        self._compared: dict[str, tuple[Mark, Comparison | None, list[str]]] = {}
        self._known: dict[str, tuple[Mark, State]] = {}
        self._looked: dict[str, float] = {}

    def look(self, at: str) -> State:
        """Return the content of a place, at most a second old.

        Raises:
            LookupError: There is no such place.
            UserError: It has never been readable.
        """
        at, path = self._place(at)
        now, cached = time.monotonic(), self._known.get(at)
        if cached and now - self._looked[at] < EVERY_S:
            return cached[1]
        runs, jobs = self._runs(path)
        readable: list[Followed] = []
        signs: list[object] = []
        for followed in runs:
            # A run that cannot be read is not shown, but what is wrong with it changes the page.
            signs.append((followed.path, followed.version, followed.trouble))
            if followed.run is not None:
                signs.append(followed.run.state)
                readable.append(followed)
        mark = (*signs, jobs)
        if cached is None or cached[0] != mark:
            try:
                state = self._state(at, path, readable)
            except UserError as error:
                # A table is damaged, or half replaced: the page keeps what it showed before.
                if cached is None:
                    raise
                live = cached[1].found["live"]._replace(state="lost", message=str(error))
                content = {**cached[1].found, "live": live}
                state = replace(cached[1], found=content, blocks=blocks(content))
            self._known[at] = (mark, state)
        self._looked[at] = now
        self._known[at] = self._known.pop(at)  # in order of use, the most recent last
        while len(self._known) > MOST_PLACES:
            forgotten = next(iter(self._known))
            for cache in (self._known, self._looked, self._compared):
                cache.pop(forgotten, None)
        return self._known[at][1]

    def opened(self, at: str, run: str, episode: str) -> dict[str, object]:
        """Return the calls of an episode, as `harness_report.episodes.opened` does.

        Raises:
            LookupError: There is no such episode.
            UserError: Its rows are damaged.
        """
        runs, _ = self._runs(self._place(at)[1])
        for followed in runs:
            if followed.run is not None and followed.run.id == run:
                return opened(followed.run, episode, followed.calls(episode))
        raise LookupError(run)

    def _place(self, at: str) -> tuple[str, Path]:
        """Return the canonical name of a place, which is its cache key, and its path.

        Raises:
            LookupError: There is no such place.
        """
        pure = PurePosixPath(at)
        if not at or len(at) > MOST_CHARS or pure.is_absolute() or ".." in pure.parts:
            raise LookupError(at[:MOST_CHARS])
        place, path = str(pure), self.root / pure
        if place == HERE or path in self._followed:
            return place, path
        try:
            if _held(path, "run.json") or _held(path, STUDY_FILE):
                return place, path
        except OSError as error:  # a part of the path is too long for a file name
            raise LookupError(at) from error
        raise LookupError(at)

    def _runs(self, path: Path) -> tuple[list[Followed], Mark]:
        """Return the refreshed runs of a place and a mark of its other content."""
        if _held(path, STUDY_FILE):
            try:
                names = [job["run"] for job in read_state(path)["jobs"]]
                extra: Mark = ((path / STUDY_FILE).stat().st_mtime_ns,)
            except (UserError, OSError) as error:
                names, extra = [], (str(error),)
            folders = []
            for name in names:
                if name and (path / name / "run.json").is_file():
                    folders.append(path / name)
        elif path in self._followed or _held(path, "run.json"):
            folders, extra = [path], ()
        else:
            folders = [file.parent for file in path.glob("*/run.json")]
            # Studies in the folder are listed by their states, which no run's version contains.
            studies: list[object] = []
            for file in path.glob(f"*/{STUDY_FILE}"):
                studies.append((file, file.stat().st_mtime_ns))
            extra = tuple(studies)
        runs = []
        for folder in sorted(folders, reverse=True):
            # One reader per run, also if several places show it: files are read once.
            run = self._followed.setdefault(folder, Followed(folder))
            run.look()
            runs.append(run)
        return runs, extra

    def _state(self, at: str, path: Path, runs: Sequence[Followed]) -> State:
        if _held(path, STUDY_FILE):
            content = self._compare(at, self._study(path, runs), runs)
        elif path in self._followed:
            if (run := self._followed[path].run) is None:
                raise UserError(self._followed[path].trouble)
            if not run.arm:
                name_arms([run])
            content = self._compare(at, Selection([run], run.id), runs)
        else:
            content = _folder(path, runs)
        above = None if at == HERE else str(PurePosixPath(at).parent)
        state, description = _state_and_message(content, runs)
        content["live"] = Live(at, state, description, above, "" if at == HERE else f"{at}/")
        charts = json.dumps(content["charts"], default=str, allow_nan=False)
        era = 0
        for followed in runs:
            # A run without episodes shows none that could disappear from the page.
            if followed.run and len(followed.run.episodes):
                era += followed.era
        return State(content, blocks(content), charts, era)

    def _study(self, path: Path, runs: Sequence[Followed]) -> Selection:
        try:
            chosen = select([path])
        except UserError:  # none of its runs has begun
            state = read_state(path)
            chosen = Selection([], state["name"], state, jobs=state["jobs"])
        runs_by_path = {followed.path: followed.run for followed in runs}
        shown: list[Run] = []
        for chosen_run in chosen.runs:
            # The selection names the arms; the followed run has the rows that are read already.
            run = runs_by_path.get(chosen_run.folder.path)
            if run is not None:
                run.arm, run.name = chosen_run.arm, chosen_run.name
                shown.append(run)
        return replace(chosen, runs=shown)

    def _compare(self, at: str, chosen: Selection, runs: Sequence[Followed]) -> Contents:
        """Return the page's content for runs, with a new comparison after a run changes its state."""
        # A comparison takes seconds, and new rows of a running run do not change it.
        compared_runs: list[object] = []
        for followed in runs:
            if followed.run is not None:
                version = followed.version if followed.run.finished else None
                compared_runs.append((followed.path, followed.run.state, version))
        mark = tuple(compared_runs)
        cached = self._compared.get(at)
        if cached is None or cached[0] != mark:
            try:
                cached = (mark, *compared(chosen))
            except UserError as error:
                cached = (mark, None, [f"No comparison: {error}."])
            self._compared[at] = cached
        _, comparison, remarks = cached
        arms = by_arm(chosen.runs, comparison)
        return contents(chosen, comparison, remarks, arms, newest(arms, NEWEST))


def _held(path: Path, name: str) -> bool:
    return (path / name).is_file()


def _state_and_message(found: Contents, runs: Sequence[Followed]) -> tuple[str, str]:
    """Return the kind of a place's state and its description."""
    troubles: list[str] = []
    states: list[str] = []
    for followed in runs:
        if followed.trouble:
            troubles.append(followed.trouble)
        if followed.run is not None:
            states.append(followed.run.state)
    # Of several runs each has its state in a row, so that one which is gone is no state of all.
    if troubles and (len(runs) == 1 or troubles[0] not in (GONE, LEFT)):
        return "lost", troubles[0]
    if len(runs) == 1 and not found["matrix"]:
        assert runs[0].run is not None
        return _state_of_one(runs[0].run)
    # The table of a study has a row for each job, also for those that have not begun.
    if "run" not in found["columns"]:
        states = [row["state"] for row in found["matrix"]]
    return _state_of_all(states), _counted(states) or "no run has begun"


def _state_of_one(run: Run) -> tuple[str, str]:
    launches = run.record["launches"]
    again = f", launch {len(launches)}" if len(launches) > 1 else ""
    begun = run.progress.rollouts or run.state != "running"
    where = standing(run.progress) if begun else "starting"
    described = f"{run.state}{again}{', ' if where else ''}{where}"
    if run.state in ("running", "finished"):
        return run.state, described
    why = launches[-1].get("reason")
    if why:
        described = f"{described}: {why}"
    return "lost" if run.state == KILLED else run.state, described


def _state_of_all(states: Sequence[str]) -> str:
    if "running" in states:
        return "running"
    return "lost" if KILLED in states else "finished"


def _counted(states: Sequence[str]) -> str:
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _folder(path: Path, runs: Sequence[Followed]) -> Contents:
    """Return a list of runs to choose from, newest first."""
    rows = [*_studies(path), *_listed(runs)]
    columns = ("run", *COLUMNS[2:], "agent", "trained roles", "seed")
    no_episodes = {"episodes": [], "texts": [], "total": 0, "shown": 0}
    content = contents(Selection([], str(path)), None, [], {}, no_episodes)
    content["matrix"] = [dict.fromkeys(columns, "") | row for row in rows]
    # A column that is empty in every row would only take width: studies have no seed, for example.
    filled: set[str] = set()
    for row in rows:
        filled.update(name for name, text in row.items() if text)
    content["columns"] = [name for name in columns if name in filled]
    return content


def _listed(runs: Sequence[Followed]) -> Iterator[dict[str, str]]:
    for followed in runs:
        if followed.run is None:
            continue
        record, name = followed.run.record, followed.path.name
        what = {
            "agent": record["agent"],
            "trained roles": record["agent_match"],
            "seed": str(record["seed"]),
        }
        # One damaged run must not hide the others; without a folder its row is no link.
        try:
            yield {"folder": name, "run": name, **what, **progress_cells(followed.run)}
        except UserError as error:
            yield {"folder": "", "run": name, **what, "state": str(error)}


def _studies(path: Path) -> Iterator[dict[str, str]]:
    for file in sorted(path.glob(f"*/{STUDY_FILE}"), reverse=True):
        try:
            states = [job.get("state", "planned") for job in read_state(file.parent)["jobs"]]
        except UserError as error:
            yield {"folder": "", "run": file.parent.name, "state": str(error)}
            continue
        yield {
            "folder": file.parent.name,
            "run": file.parent.name,
            "agent": "a study",
            "state": _counted(states),
        }
