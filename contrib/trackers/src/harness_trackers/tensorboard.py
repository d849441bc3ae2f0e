"""TensorBoard's event files."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from harness.runs.reading import Run
from harness_trackers.contents import contents


def export(run: Run, where: str) -> str:
    """Write event files to a folder below `where`, by default `tensorboard`.

    Return how to view them.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    exported = contents(run)
    root = where or "tensorboard"
    writer = EventFileWriter(f"{root}/{exported.name}")
    now = time.time()

    def write(step: int, summary: Summary) -> None:
        writer.add_event(Event(step=step, wall_time=now, summary=summary))

    for name, values in exported.curves.items():
        for step, value in values.items():
            write(step, Summary(value=[Summary.Value(tag=name, simple_value=value)]))
    separator = ["---"] * len(exported.episodes)
    table = [list(exported.episodes), separator, *exported.rows()]
    sample = "\n".join(map(_row, table))
    for name, text in (
        ("config", _block(exported.config)),
        ("figures", _block(exported.figures)),
        ("episodes", sample),
    ):
        write(0, text_pb(name, text))
    writer.close()
    return f"tensorboard --logdir {root}"


def _block(values: object) -> str:
    return "```json\n" + json.dumps(values, indent=2, ensure_ascii=False) + "\n```"


def _row(texts: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(_cell, texts))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
