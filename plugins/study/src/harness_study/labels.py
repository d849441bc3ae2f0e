"""Names of arms and jobs."""

from __future__ import annotations

import hashlib

from harness.util.formatting import MIXES

_KEY_BYTES = 150
"""Most bytes of a job's key without its seed; file names are made of it."""


def label_of(axis: str, value: object) -> str:
    """Return the label of a value of an axis: the value, and the axis where it says little."""
    text = "default" if value is None else str(value)
    if axis == "agent" and isinstance(value, list):
        text = MIXES.join(map(str, value))
    if axis in ("agent", "agent_match", "preset"):
        return text
    return f"{axis.rpartition('.')[2]}={text}"


def key_of(label: str, seed: int) -> str:
    """Return the key of a job, a valid file name that no other arm or seed has."""
    name = ""
    for letter in label:
        name += letter if letter.isalnum() or letter in "_.=-" else "-"
    name = name.encode()[:_KEY_BYTES].decode(errors="ignore")
    # "write|check" and "write check" must not share a file.
    if name != label:
        name += "-" + hashlib.sha256(label.encode()).hexdigest()[:4]
    return f"{name}-seed{seed}"
