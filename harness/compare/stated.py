"""Whether margin, baseline and checkpoint of a comparison were stated before there were results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from harness.compare.keys import Exempt
from harness.compare.states import Asked, Stated

if TYPE_CHECKING:
    from harness.runs.reading import Run

_KEYS: tuple[Literal["margin", "baseline", "checkpoint"], ...] = (
    "margin",
    "baseline",
    "checkpoint",
)


def stated_late(study: Asked, runs: Iterable[Run], margin: float | None) -> list[Exempt]:
    """Return what was not stated before the results: another margin, and later changes of the file.

    Args:
        study: Empty for runs without a study.
        margin: As given to the comparison; None for the study's own.
    """
    late: list[Exempt] = []
    own = study.get("margin")
    if study and margin is not None and margin != own:
        late.append(
            {
                "key": "margin",
                "why": "given",
                "values": {"study": own, "comparison": margin},
                "texts": [f"{_shown(own)} in the study", f"{_shown(margin)} in this comparison"],
            }
        )
    ends: list[str] = []
    for run in runs:
        if run.finished:
            ends.append(run.record["launches"][-1].get("ended", ""))
    return late + _changes(study, ends)


def _changes(study: Asked, ends: Iterable[str]) -> list[Exempt]:
    """Return what a study's file states otherwise than when its first run had finished.

    Args:
        ends: When the finished runs ended.
    """
    # Launches of older versions do not have these keys.
    launches = [launch for launch in study.get("launches", []) if "margin" in launch]
    first_end = min(ends, default="")
    if not launches or not first_end:
        return []
    declared = launches[0]
    for launch in launches:
        if launch["started"] < first_end:
            declared = launch
    changes: list[Exempt] = []
    for key in _KEYS:
        first, now = declared.get(key), study.get(key)
        if first == now:
            continue
        # A value that no launch has was written after all of them.
        since = ""
        for launch in reversed(launches):
            if launch.get(key) != now:
                break
            since = launch["started"]
        when = f"since {since}" if since else "since the last start"
        changes.append(
            {
                "key": key,
                "why": "changed",
                "values": {"first": first, "now": now},
                "texts": [f"{_shown(first)} at first", f"{_shown(now)} {when}"],
            }
        )
    return changes


def source_of_margin(
    study: Asked, margin: float | None, late: Iterable[Exempt]
) -> Literal["given", "changed"] | None:
    """Return why the margin was not stated beforehand; None if it was, or if there is none.

    Args:
        margin: As given to the comparison; None for the study's own.
        late: The result of `stated_late`.
    """
    if margin is not None and margin != study.get("margin"):
        return "given"
    for exempt in late:
        if exempt["key"] == "margin" and exempt["why"] == "changed":
            return "changed"
    return None


def _shown(value: Stated) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
