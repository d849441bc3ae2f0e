"""Trainers: what turns the rollouts of a run into a trained policy; the contract, and what a trainer is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.config import Config
    from harness.findings import Finding
    from harness.gateway.client import Endpoint
    from harness.records import Task
    from harness.results.folder import RunFolder

MEASURES: dict[str, str] = {
    "step_s": "seconds of the whole step; a step that has it was trained to its end",
    "rollout_s": "of them, generating rollouts",
    "update_s": "of them, updating the policy",
    "weights_s": "of them, handing the new weights to the policy's servers",
    "checkpoint_s": "of them, saving a checkpoint",
    "gradient_norm": "norm of the step's gradient",
    "entropy": "of the policy, mean over trained tokens",
    "clipped": "share of trained tokens whose update the bound on the ratio of probabilities clips",
    "cut": "share of trained replies cut at the token limit",
    "rollout_probs_diff": "largest difference of a token's probability between rollout and trainer",
    "calls": "calls that were trained, where calls of a dialogue can share a row",
    "merged_calls": "of them, in the row of an earlier call",
    "tokens": "of the rows, prompts included",
    "saved_tokens": "what rows of a call each would have had besides",
    "chosen_tokens": "trained tokens with a gradient, where those of other rollouts have none",
}
"""What harness reads of a logged step. A trainer logs what it knows by these names, and by its own whatever else."""


@dataclass
class Progress:
    """Where a run stands, for a display.

    Attributes:
        phase: What is going on, in a word or two.
        done: Of the `expected` rollouts of this phase, so many ended.
        mixed: Share of the last step's groups, rollouts of one task, that teach: whose rewards differ, or with a good
            rollout where the best are chosen; None where there is none.
        val_curve: Mean validation reward by step, of whole validations; step 0 is before training.
        validating: Step of the validation under way, `done` of whose `expected` rollouts ended; None outside of one.
        val_so_far: Mean reward of those that have one.
        graded: Whether means of rewards are no accuracy, as the reward says or a value other than 0 and 1.
        rollouts_per_s: Finished rollouts per second since the first of this launch; 0 in the first second.
        remaining_s: Estimate for the steps left, from the median of the last ones, or for the validation under way
            where that takes longer; of an evaluation for its rollouts.
        remark: What the user should know of the training's course; empty where there is nothing.
        warning: What is wrong with how it is set up, said once.
    """

    phase: str = "starting"
    done: int = 0
    expected: int = 0
    step: int = 0
    total_steps: int = 0
    reward: float | None = None
    mixed: float | None = None
    val_curve: dict[int, float] = field(default_factory=dict)
    validating: int | None = None
    val_so_far: float | None = None
    graded: bool = False
    rollouts: int = 0
    rollouts_per_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    step_s: float | None = None
    remaining_s: float | None = None
    remark: str = ""
    warning: str = ""


class LiveRun(Protocol):
    """A run that goes on; what a trainer is given."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder. `data/train.parquet` and `data/val.parquet` in it hold the tasks in order."""

    @property
    def train(self) -> Sequence[Task]:
        """Tasks of every step, one after the other."""

    @property
    def val(self) -> Sequence[Task]:
        """The validation tasks."""

    @property
    def model(self) -> str:
        """Folder or Hugging Face id of the policy that is trained."""

    @property
    def device(self) -> str:
        """`cpu`, `cuda` or `npu`."""

    @property
    def roles(self) -> Mapping[str, Endpoint]:
        """Where roles are answered that the policy does not answer; for `RolloutWork`."""

    @property
    def done(self) -> int:
        """Steps that earlier launches have trained: go on from their checkpoint. 0 where there is none."""

    @property
    def validate_first(self) -> bool:
        """Whether the validation after step `done` is still to be made."""

    @property
    def steps(self) -> int:
        """Training steps in all."""

    def poll(self) -> None:
        """Take in the rows written since the last call and show the progress; call it a few times a second.

        Raises:
            RunFailed: Too large a share of a step's rollouts failed.
        """

    def full(self) -> str:
        """What to say where the disk has no room to go on; empty where it has."""


class Standby:
    """Holds what the runs of a study would each load; a run that cannot use it does without.

    Attributes:
        variables: What a run finds in its environment to find this.
    """

    variables: Mapping[str, str]

    def fresh(self) -> bool:
        """Whether it runs, and nothing that it has loaded has changed since."""
        raise NotImplementedError

    def close(self) -> None:
        """End it; no run that it serves goes on."""
        raise NotImplementedError


class Trainer:
    """Trains; built once a run. Only `fit` must be written: order, record and the run's end are the caller's."""

    def check(self, config: Config) -> None:
        """Called where a run is asked for, also a dry one: refuse options that the trainer does not know.

        Raises:
            ConfigError: There is one; the message names it.
        """

    def check_machine(self, config: Config) -> None:
        """Called before a run is announced or its folder made, but not for a dry one: refuse what is not installed.

        Raises:
            EnvironmentProblem: Something is missing; the message says how it is installed.
        """

    def examine(self, address: str) -> Iterator[Finding]:
        """What `harness doctor --ray` says of a cluster, a line each.

        Raises:
            UserError: The trainer works on no cluster.
        """
        raise UserError(f"{type(self).__name__} works on no Ray cluster")

    def standby(self, config: Config, environment: Mapping[str, str]) -> Standby | None:
        """Asked by a study that has several runs for the same processors, before the first of them and bound to these.

        Args:
            environment: Of such a run; which GPUs it sees a process may have to know from its start.

        Returns:
            None where nothing can be held for such a run.
        """
        return None

    def checkpoints(self, folder: RunFolder) -> Mapping[int, Path]:
        """Whole checkpoints by their step, in order; a resumed run goes on from the last."""
        return {}

    def export(self, folder: RunFolder, checkpoint: Path, target: Path) -> None:
        """Write a checkpoint's policy as a new folder that transformers and vLLM load; `eval` and `export` ask for it.

        Raises:
            UserError: The trainer cannot.
        """
        raise UserError(
            f"{type(self).__name__} does not say how a checkpoint becomes a policy: its `export` is missing"
        )

    def policy(self, folder: RunFolder, checkpoint: Path) -> Any:
        """A checkpoint's policy as it was trained, in fp32 on the CPU; `export --verify` asks for it.

        Returns:
            A model of transformers.

        Raises:
            UserError: The trainer cannot.
        """
        raise UserError(
            f"{type(self).__name__} does not say how a checkpoint is read: its `policy` is missing"
        )

    def prepare(self, run: LiveRun) -> int:
        """Called before anything is recorded: refuse what cannot be trained, clear what a killed launch left half done.

        Returns:
            Bytes that the run's checkpoints take on disk at least; 0 where that is not known.

        Raises:
            ConfigError: The trainer cannot work with these values; the message names them.
        """
        return 0

    def fit(self, run: LiveRun) -> None:
        """Train from the step after `run.done` to the last one.

        Raises:
            RunFailed: The run ended early for a reason that the message names; it can be resumed.
            KeyboardInterrupt: It was interrupted; it can be resumed.
        """
        raise NotImplementedError
