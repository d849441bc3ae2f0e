"""Assign the rollouts of a mixture to its agents.

All rollouts of a task in a step belong to one agent, so that they are compared with rollouts of the
same agent. The tasks of a run go to the agents in turn, in the order of the run: each agent has as
many as the others, plus or minus one. Validation tasks are assigned in the same way, alike after
every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import RunFailed
from harness.rollout.request import Phase


class Assignment:
    """The agent of each rollout of a run.

    Args:
        agents: Names of the run's agents, one or several.
        data: Folder with the run's order of tasks: `train.parquet` and `val.parquet`.
        batch_size: Tasks of a training step.
    """

    def __init__(self, agents: Sequence[str], data: Path, batch_size: int) -> None:
        self._agents = agents
        self._data = data
        self._batch_size = batch_size
        self._positions: dict[tuple[Phase, int, str], int] = {}
        """By phase, step and task. The step is 0 for all validations."""

    def agent(self, phase: Phase, step: int, task_id: str) -> str:
        """Return the agent of all rollouts of a task in a step.

        Raises:
            RunFailed: The run's order has no such task in this step.
        """
        if len(self._agents) == 1:
            return self._agents[0]
        if not self._positions:
            self._read()
        key = (phase, step if phase == "train" else 0, task_id)
        position = self._positions.get(key)
        if position is None:
            raise RunFailed(
                f"task {task_id} is not in step {step} of {self._data / f'{phase}.parquet'}, "
                "so no agent of the mixture is assigned to it. A trainer of mixtures "
                "must request rollouts in the order of the run"
            )
        return self._agents[position % len(self._agents)]

    def _read(self) -> None:
        """Read the positions of all tasks in the order of the run."""
        import pyarrow.parquet as pq

        phases: tuple[Phase, ...] = ("train", "val")
        for phase in phases:
            table = pq.read_table(self._data / f"{phase}.parquet", columns=["extra_info"])
            for row in table["extra_info"].to_pylist():
                position = int(row["index"])
                # The first training step is 1.
                step = 1 + position // self._batch_size if phase == "train" else 0
                self._positions[phase, step, row["task_id"]] = position
