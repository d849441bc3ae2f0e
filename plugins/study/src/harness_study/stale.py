"""Find entries of earlier launches with settings that their arm no longer has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.compare.states import Entry
from harness.config import Config
from harness.plugins import one_file
from harness.runs.reading import readable
from harness.util.parsing import differing, flatten
from harness_study.plan import Job, Study, varied_keys


def mark_stale(
    entries: Mapping[str, Entry], study: Study, jobs: Sequence[Job], folder: Path
) -> None:
    """Mark entries of the launched arms with settings that their arm no longer has.

    A launch of some seeds keeps the runs of the others, but the study's file may have changed.
    Only settings that the study varies count: a comparison refuses any other difference.

    Args:
        entries: The entries of the study, by key. They are changed in place.
        jobs: The jobs of this launch.
    """
    launched: set[str] = set()
    job_by_arm: dict[str, Job] = {}
    for job in jobs:
        launched.add(job.key)
        job_by_arm.setdefault(job.arm, job)
    varied = ("agent", "agent_match", *varied_keys(study))
    for key, entry in entries.items():
        arm_job = job_by_arm.get(entry["arm"])
        # Nothing is known of the arms that this launch leaves out.
        if key in launched or arm_job is None:
            continue
        entry.pop("stale", None)
        if entry["run"] and (folder / entry["run"] / "run.json").is_file():
            changed = _changed(folder / entry["run"], arm_job, varied)
            if changed:
                entry["stale"] = changed


def _changed(run_folder: Path, job: Job, varied: Iterable[str]) -> list[str]:
    """Return the varied settings of a run that differ from those of its arm, as `key=value`."""
    changed: list[str] = []
    for run in readable([run_folder]):
        configured: dict[str, Any] = dict(run.record["config"])
        with suppress(ValueError):  # a removed setting: the others still count
            configured = Config.model_validate(configured).dump()
        changed += changed_settings(flatten(configured), flatten(job.config.dump()), varied)
    return changed


def changed_settings(
    before: Mapping[str, object], now: Mapping[str, object], varied: Iterable[str]
) -> list[str]:
    """Return the varied settings that a run had and its arm no longer has, as `key=value`.

    Args:
        before: Settings of the run, by dotted key.
        now: Settings of the arm.
        varied: Keys, or their sections, that the study varies.
    """
    changed: list[str] = []
    for key in differing([before, now]):
        # The model of a role may be another one for each seed.
        if key.startswith("roles.") or _is_moved_agent(key, before, now):
            continue
        if any(key == name or key.startswith(f"{name}.") for name in varied):
            changed.append(f"{key}={before.get(key)}")
    return changed


def _is_moved_agent(key: str, before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """Return whether a key is an agent in a file that differs in its folder only."""
    agents = (str(before.get(key)), str(now.get(key)))
    if key != "agent" or not all(one_file.is_file(agent) for agent in agents):
        return False
    old, new = (Path(agent).name for agent in agents)
    return old == new
