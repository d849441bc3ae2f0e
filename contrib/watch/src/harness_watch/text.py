"""The facts of the page as plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.cli.common import table
from harness.util.formatting import printable
from harness_report.page import Contents
from harness_watch.view import EVERY_S, State, View

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SO_FAR_S = 15.0
"""Minimum interval between lines on a running validation, which changes with every rollout."""
EPISODES = 8
"""Number of newest episodes shown, one line each."""


def show(view: View, at: str, console: Console) -> None:
    """Show a place until it has ended, refreshed on a terminal, else one line per change."""
    if console.is_terminal:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            for state in _states(view, at):
                live.update(_screen(state.found), refresh=True)
        return
    printed: set[str] = set()
    counted_s = -SO_FAR_S
    for state in _states(view, at):
        for line in lines(state.found):
            counts, now = " so far (" in line, time.monotonic()
            if line not in printed and not (counts and now - counted_s < SO_FAR_S):
                printed.add(line)
                counted_s = now if counts else counted_s
                console.print(printable(line), markup=False, soft_wrap=True)


def _states(view: View, at: str) -> Iterator[State]:
    last: State | None = None
    while True:
        state = view.look(at)
        if state is not last:
            yield state
        if state.found["live"].state != "running":
            return
        last = state
        time.sleep(EVERY_S)


def lines(found: Contents) -> Iterator[str]:
    """Yield one line per fact. A line is unchanged while its fact is."""
    if not found["matrix"]:
        yield f"{found['title']}: {found['live'].message}"
    columns = found["columns"]
    for row in found["matrix"]:
        cells = []
        for name in columns[1:]:
            # The time left changes at every look, and the line would be printed each time.
            if row[name] and name != "left":
                cells.append(f"{name} {row[name]}")
        yield f"{row[columns[0]]}: {', '.join(cells)}"
    for card in found["headline"]:
        if card["label"] == "failures" and card["more"]:
            yield f"failures: {', '.join(card['more'])}"
    if found["live"].state == "finished":
        for remark in found["remarks"]:
            yield f"{remark}"


def _screen(found: Contents) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(printable(f"{found['title']}: {found['live'].message}"), style="bold")
    ]
    if found["matrix"]:
        rows = table(*found["columns"], overflow="fold")
        for row in found["matrix"]:
            rows.add_row(*(Text(printable(row[name])) for name in found["columns"]))
        parts.append(rows)
    for card in found["headline"]:
        parts.append(
            Text(printable(f"{card['label']:>12}  {card['value']}  {'; '.join(card['more'])}"))
        )
    for chart in found["charts"]:
        if chart["layout"]["xaxis"]["title"]["text"] != "step":
            continue
        last = _last(chart["data"])
        if last is not None:
            parts.append(Text(printable(f"{chart['title']:>24}  {last}")))
    for one in found["browser"]["episodes"][:EPISODES]:
        what = f"{one['verdict']:>12}  {one['phase']} step {one['step']}  {one['question']}"
        parts.append(Text(printable(" ".join(what.split("\n"))), no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _last(traces: list[dict[str, list[float]]]) -> str | None:
    """Return the newest value of a curve, for its first arm."""
    for trace in traces:
        if len(trace["x"]):
            return f"{trace['y'][-1]:.4g} at step {trace['x'][-1]}"
    return None
