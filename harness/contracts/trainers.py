"""The contract of trainers, which turn the rollouts of a run into a trained policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.config import Config
    from harness.contracts.findings import Finding
    from harness.records import Task
    from harness.runs.folder import RunFolder
    from harness.util.endpoints import Endpoint

MEASURES: dict[str, str] = {
    "step_s": "seconds of the whole step; a step that has it was trained to its end",
    "rollout_s": "part of `step_s` that generates rollouts",
    "update_s": "part of `step_s` that updates the policy",
    "weights_s": "part of `step_s` that sends the new weights to the policy's servers",
    "checkpoint_s": "part of `step_s` that saves a checkpoint",
    "gradient_norm": "norm of the step's gradient",
    "entropy": "entropy of the policy, mean over trained tokens",
    "clipped": "share of trained tokens with an update clipped by the bound on the ratio of probabilities",
    "cut": "share of trained replies cut at the token limit",
    "rollout_probs_diff": "largest difference of a token's probability between rollout and trainer",
    "calls": "trained calls, if calls of a dialogue can share a row",
    "merged_calls": "trained calls in the row of an earlier call",
    "tokens": "tokens of these rows, including prompts",
    "saved_tokens": "further tokens that one row for each call would have had",
    "chosen_tokens": "trained tokens with a gradient, if tokens of some rollouts have none",
    "taught_calls": "calls trained with gold answers as replies, instead of rollouts",
    "taught_tokens": "tokens of these replies",
    "left_out": "tasks without such a call: no gold answer as text, or too long",
    "cross_entropy": "mean cross entropy of these tokens, each before the update of its optimizer step",
}
"""Metrics of a step that harness reads. A trainer logs the metrics that it has under these names, and
others under its own.
"""


class LiveRun(Protocol):
    """A run in progress, as a trainer receives it."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder.

        `data/train.parquet` and `data/val.parquet` in it hold the tasks in order.
        """

    @property
    def train(self) -> Sequence[Task]:
        """Return the tasks of every step, one after the other."""

    @property
    def val(self) -> Sequence[Task]:
        """Return the validation tasks."""

    @property
    def model(self) -> str:
        """Folder or Hugging Face id of the policy to train."""

    @property
    def device(self) -> str:
        """`cpu`, `cuda` or `npu`."""

    @property
    def preloaded(self) -> Mapping[str, str]:
        """Variables of this training's own `Standby`; the environment may name a study's."""

    @property
    def roles(self) -> Mapping[str, Endpoint]:
        """Endpoints of the roles that the policy does not answer; for `RolloutWork`."""

    @property
    def done(self) -> int:
        """Steps that earlier launches trained.

        Continue from their checkpoint; 0 if there is none.
        """

    @property
    def validate_first(self) -> bool:
        """Whether the validation after step `done` is still missing."""

    @property
    def steps(self) -> int:
        """Total number of training steps."""

    def poll(self) -> None:
        """Read the rows written since the last call and show the progress.

        Call it a few times a second.

        Raises:
            RunFailed: Too many rollouts of a step failed.
        """

    def full(self) -> str:
        """Return a message if the disk has no room to continue; empty otherwise."""


class Standby:
    """Modules preloaded for trainings. A run that cannot use them loads its own.

    Attributes:
        variables: Environment variables by which a run finds this process.
    """

    variables: Mapping[str, str]

    def fresh(self) -> bool:
        """Return whether it is running and none of its loaded files has changed."""
        raise NotImplementedError

    def close(self) -> None:
        """End it. No run that uses it survives."""
        raise NotImplementedError


class Trainer:
    """Train; built once per run.

    Only `fit` is required: the caller handles order, record and the run's end.
    """

    def check(self, config: Config) -> None:
        """Refuse unknown options of the trainer.

        Called for every requested run, including dry runs.

        Raises:
            ConfigError: An option is unknown; the message names it.
        """

    def check_machine(self, config: Config) -> None:
        """Refuse missing installations.

        Called before a run is announced or its folder created, but not for a dry run.

        Raises:
            EnvironmentProblem: Something is missing; the message states how to install it.
        """

    def examine(self, address: str) -> Iterator[Finding]:
        """Return the findings of `harness doctor --ray` about a cluster.

        Raises:
            UserError: The trainer works on no cluster.
        """
        raise UserError(f"{type(self).__name__} works on no Ray cluster")

    def standby(self, config: Config, environment: Mapping[str, str]) -> Standby | None:
        """Preload modules for a training, or for a study's trainings on the same processors.

        Called before the first of them, while the tasks are read and the run is checked.

        Args:
            environment: Environment variables of such a run. A process may need to know its GPUs
                from its start.

        Returns:
            None if nothing can be preloaded for such a run, or if the environment names modules
            that were.
        """
        return None

    def checkpoints(self, folder: RunFolder) -> Mapping[int, Path]:
        """Return complete checkpoints by step, in order. A resumed run continues from the last.

        They are in `folder.checkpoints`, which harness removes when a training with
        `train.keep_checkpoints=0` has finished. Whether another number limits them is up to the
        trainer.
        """
        return {}

    def export(self, folder: RunFolder, checkpoint: Path, target: Path) -> None:
        """Write a checkpoint's policy as a new folder for transformers and vLLM.

        Used by `harness eval` and `harness export`.

        Raises:
            UserError: The trainer cannot.
        """
        raise UserError(
            f"{type(self).__name__} does not say how a checkpoint becomes a policy: "
            "its `export` is missing"
        )

    def policy(self, folder: RunFolder, checkpoint: Path) -> Any:
        """Return a checkpoint's policy as trained, in fp32 on the CPU; used by `export --verify`.

        Returns:
            A model of transformers.

        Raises:
            UserError: The trainer cannot.
        """
        raise UserError(
            f"{type(self).__name__} does not say how a checkpoint is read: its `policy` is missing"
        )

    def prepare(self, run: LiveRun) -> int:
        """Refuse what cannot be trained and remove partial files of a killed launch.

        Called before anything is recorded.

        Returns:
            Bytes that the run's checkpoints need on disk at least; 0 if unknown.

        Raises:
            ConfigError: The trainer cannot work with these values; the message names them.
        """
        return 0

    def checkpoint_bytes(self, config: Config, model: str) -> int:
        """Return the least disk space of one checkpoint, for the plan of a study.

        Args:
            model: The first policy: a local folder, or a Hugging Face id.

        Returns:
            Bytes; 0 if unknown.
        """
        return 0

    def fit(self, run: LiveRun) -> None:
        """Train from the step after `run.done` to the last one.

        Raises:
            RunFailed: The run ended early for a reason that the message names; it can be resumed.
            KeyboardInterrupt: The run was interrupted; it can be resumed.
        """
        raise NotImplementedError
