"""Assign whole rollouts to optimizer steps, and whole tasks of a step to devices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the batch, identified by its content and not by its time of arrival.

    Attributes:
        position: Of its task in the run's order.
        session: Rollout of the task, from 0.
        call: Of the rollout's rows, from 0.
        tokens: Prompt and response.
        calls: How many it holds.
    """

    key: str
    position: int
    session: int
    call: int
    tokens: int
    calls: int = 1


def deal(rows: Sequence[Row], seed: int, step: int, parts: int) -> list[list[Row]]:
    """Distribute whole rollouts over `parts` mini-batches with nearly equal numbers of calls.

    The assignment depends only on the rollouts, `seed` and `step`. Inside a mini-batch rows are
    sorted by length, so that the rows of a micro-batch need little padding. The order changes a
    mini-batch's sum only by rounding.

    Returns:
        `parts` lists, or as many as there are rollouts; none is empty.
    """
    rollouts: dict[tuple[int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.position, row.session, row.call)):
        rollouts.setdefault((row.position, row.session), []).append(row)

    def drawn(name: tuple[int, int]) -> bytes:
        return hashlib.sha256(f"{seed}/{step}/{name[0]}/{name[1]}".encode()).digest()

    def calls(some: Sequence[Row]) -> int:
        return sum(row.calls for row in some)

    dealt: list[list[Row]] = [[] for _ in range(min(parts, len(rollouts)))]
    # The rollouts with the most calls first, so that small ones even out the rest. A hash decides
    # between equal ones, as any fixed order would keep the same tasks together in all steps.
    for name in sorted(rollouts, key=lambda name: (-calls(rollouts[name]), drawn(name))):
        min(dealt, key=calls).extend(rollouts[name])
    for part in dealt:
        part.sort(key=lambda row: (row.tokens, row.position, row.session, row.call))
    return dealt


def deal_to_ranks(part: Sequence[Row], ranks: int) -> list[list[Row]]:
    """Distribute a mini-batch's rows over devices, whole tasks together, with nearly equal tokens.

    The rollouts of a task send the same prompts, which a device computes once for all its rows.
    With fewer tasks than devices, whole rollouts are distributed instead, so that every device has
    work.

    Args:
        part: The mini-batch, as `deal` returns it.
        ranks: The number of devices.

    Returns:
        One list for each device, its rows in the order of `part`. Lists may differ in length or be
        empty.
    """
    tasks = {row.position for row in part}
    by_task = len(tasks) >= ranks
    tokens: dict[tuple[int, int], int] = {}
    for row in part:
        unit = (row.position, 0) if by_task else (row.position, row.session)
        tokens[unit] = tokens.get(unit, 0) + row.tokens
    loads = [0] * ranks
    rank_of: dict[tuple[int, int], int] = {}
    # The largest units first, so that small ones even out the rest.
    for unit in sorted(tokens, key=lambda unit: (-tokens[unit], unit)):
        rank = loads.index(min(loads))
        rank_of[unit] = rank
        loads[rank] += tokens[unit]
    dealt: list[list[Row]] = [[] for _ in range(ranks)]
    for row in part:
        unit = (row.position, 0) if by_task else (row.position, row.session)
        dealt[rank_of[unit]].append(row)
    return dealt
