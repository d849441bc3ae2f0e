"""The content of `study.json`: the jobs of a study, their states, and its starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NotRequired, cast

from typing_extensions import TypedDict

from harness.compare.keys import Kind
from harness.config import Config
from harness.errors import UserError
from harness.runs.folder import read_json
from harness.runs.record_types import fault
from harness.util.parsing import digest

PACKED = "runs.tar.xz"
"""Archive with the runs of a published study."""
STUDY_FILE = "study.json"


class Entry(TypedDict):
    """One job in `study.json`."""

    key: Annotated[str, "unique key in the study; names its configuration and its log"]
    arm: Annotated[str, "name of its arm"]
    seed: Annotated[int, "seed of the run"]
    run: Annotated[str | None, "name of its run's folder; None before there is one"]
    state: NotRequired[
        Annotated[str, "`planned`, `running`, `finished`, `failed` or `interrupted`"]
    ]
    kind: NotRequired[Annotated[Kind, "`train` or `eval`"]]
    parent: NotRequired[Annotated[str | None, "for an evaluation, the key of its training"]]
    config_hash: NotRequired[Annotated[str, "hash of its configuration"]]
    stale: NotRequired[
        Annotated[list[str], "settings of its run that its arm no longer has, as `key=value`"]
    ]
    launcher: NotRequired[Annotated[str | None, "launcher that runs it; None if it is not running"]]
    pid: NotRequired[Annotated[int | None, "id of its local process; None if there is none"]]
    pid_started: NotRequired[Annotated[float | None, "start of that process, seconds since 1970"]]


Stated = float | int | str | None
"""A value of `margin`, `baseline` or `checkpoint`."""


class StudyLaunch(TypedDict):
    """One start of a study."""

    started: Annotated[str, "UTC, ISO 8601"]
    ended: NotRequired[Annotated[str, "UTC, ISO 8601; missing while the launch is running"]]
    runs_at_once: Annotated[int, "number of concurrent runs"]
    slots: Annotated[list[dict[str, Any]], "each run's share of the machine"]
    margin: NotRequired[Annotated[float | None, "in the study's file at that time"]]
    baseline: NotRequired[Annotated[str | None, "in the study's file at that time"]]
    checkpoint: NotRequired[Annotated[int | None, "in the study's file at that time"]]


class Asked(TypedDict):
    """The questions of a study; empty for runs without a study."""

    question: NotRequired[Annotated[str, "the question in words"]]
    baseline: NotRequired[Annotated[str | None, "baseline: an arm, or its agent"]]
    margin: NotRequired[Annotated[float | None, "margin of equivalence"]]
    checkpoint: NotRequired[
        Annotated[int | None, "step at which accuracy is compared as a secondary measure"]
    ]
    varied: NotRequired[Annotated[list[str], "configuration keys that differ on purpose"]]
    evaluate: NotRequired[Annotated[list[str], "agents in which trained policies are evaluated"]]
    launches: NotRequired[Annotated[list[StudyLaunch], "its starts"]]


class StudyState(Asked):
    """The content of `study.json`."""

    schema_version: NotRequired[Annotated[int, "schema version of `study.json`"]]
    name: Annotated[str, "name of the study"]
    jobs: Annotated[list[Entry], "its runs, including planned ones"]


def conflicts(first: Asked, name: str, other: StudyState) -> dict[str, str]:
    """Return the values of settings of a comparison that two studies declare differently, by key.

    Args:
        first: Empty if no study precedes the other.
        name: The first study's name.
    """
    found: dict[str, str] = {}
    if not first:
        return found
    for key in ("baseline", "margin"):
        declared, declared_too = first.get(key), other.get(key)
        if declared != declared_too:
            found[key] = f"{declared} in {name}, {declared_too} in {other['name']}"
    return found


def refuse_conflicts(declared: Mapping[str, str], **given: object) -> None:
    """Refuse studies with different settings of a comparison, unless the setting is given.

    Args:
        declared: The result of `conflicts`.
        given: Settings of this comparison, by key; None where it gives none.
    """
    for key, values in declared.items():
        if given[key] is None:
            raise UserError(
                f"the studies declare different values of {key}: {values}. Name one: --{key}"
            )


def config_hash(config: Mapping[str, object]) -> str:
    """Return 16 hex digits over a configuration, without settings that cannot change the outcome.

    A setting that did not exist in a run's version counts as its default.
    """
    with suppress(ValueError):  # with a setting that was removed since, it is another configuration
        config = Config.model_validate(config).dump()
    plain = json.loads(json.dumps(config))
    for key in ("loggers", "keep_checkpoints"):
        plain.get("train", {}).pop(key, None)
    return digest(plain)


def read_state(folder: Path) -> StudyState:
    """Return the content of a study's `study.json`.

    Raises:
        UserError: It cannot be read or lacks the data to find its runs.
    """
    path = folder / STUDY_FILE
    advice = (
        "Restore it, or move it away and start the study again: "
        "finished runs are found by their configuration"
    )
    data = read_json(path, advice)
    if name := fault(data, StudyState):
        raise UserError(
            f"{path} is no complete record of a study: "
            f"its {name} is missing or of the wrong kind. {advice}"
        )
    return cast(StudyState, data)
