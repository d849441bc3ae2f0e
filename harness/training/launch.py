"""A trained or measured run from start to end: order, record, status, resumption, tables."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from harness.config import Config, resolve_device
from harness.config.sections import TrainConfig
from harness.contracts.tasks import TaskSet
from harness.errors import HarnessError, RunFailed, UserError
from harness.parity.shadow_check import CUT_SHORT_S, WAIT_S, ShadowCheck
from harness.plugins import make_trainer, reward_of
from harness.policies.roles import Answerer, answering
from harness.records import Task
from harness.runs.folder import FULL, RunFolder, undisturbed
from harness.runs.monitor import Monitor
from harness.runs.progress import Progress
from harness.runs.schema import Parent, RunRecord, Scores, Shadow
from harness.runs.tables import conclude
from harness.runs.training_signal import least_to_train
from harness.training.checks import ROWS_BYTES
from harness.training.data import Data, load_data, same_run
from harness.training.record import changed_data, closed, graded, run_record, training_result
from harness.training.task_order import training_order, validation_order, write_dataset
from harness.util import start_trace
from harness.util.endpoints import Endpoint
from harness.util.paid_calls import spent

logger = logging.getLogger(__name__)

LEAST_BYTES = 2**20
"""With less room on its disk a training ends: rows and checkpoints would be cut off, and a trainer
may not notice.
"""


@dataclass
class StartedRun:
    """A run in progress, for trainers (`trainers.LiveRun`) and evaluations, which train nothing.

    Attributes:
        model: For an evaluation, the measured model.
        answers: By role, the models that answer instead of the policy.
        preloaded: Variables of the training's own `Standby`.
        on_progress: Called with every `poll`.
    """

    config: Config
    folder: RunFolder
    task_set: TaskSet
    train: Sequence[Task]
    val: Sequence[Task]
    model: str
    device: str
    answers: Mapping[str, Answerer] = field(default_factory=dict)
    preloaded: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, Endpoint] = field(default_factory=dict)
    done: int = 0
    validate_first: bool = True
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None, repr=False)

    @property
    def steps(self) -> int:
        """Total number of training steps."""
        return len(self.train) // self.config.train.batch_size

    def poll(self) -> None:
        """Read the rows written since the last call and show the progress.

        Call it a few times a second.

        Raises:
            RunFailed: Too large a share of a step's rollouts failed.
        """
        self.on_progress(self._monitor.poll())

    def full(self) -> str:
        """Return a message if the disk has no room to continue; empty otherwise."""
        if self.folder.free_bytes() >= LEAST_BYTES:
            return ""
        path = self.folder.path
        return (
            f"No space left on the disk of {path}: make room, then `harness train --resume {path}`"
        )

    @cached_property
    def _monitor(self) -> Monitor:
        rollouts = {
            "train": self.config.train.batch_size * self.config.rollout.group_size,
            "val": len(self.val),
        }
        limit = self.config.rollout.max_failed_share
        of_reward = graded(reward_of(self.config))
        least = least_to_train(self.config.train.model_dump())
        return Monitor(self.folder, self.steps, rollouts, limit, graded=of_reward, least=least)


def train(
    config: Config,
    folder: RunFolder,
    data: Data | None = None,
    *,
    resume: bool = False,
    preloaded: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Train to the end. The run's folder has all results, even if this raises.

    Args:
        data: Result of `load_data`.
        resume: Continue from the newest checkpoint in the folder.
        preloaded: Variables of a `Standby` for this training alone.
        on_progress: Called a few times a second.

    Raises:
        UserError: Another process trains this run, it would not be the same run, or it has
            finished and has no checkpoint to continue from.
        ConfigError: The configuration cannot be trained; nothing is recorded then.
        EnvironmentProblem: The disk has no room for the run.
        RunFailed: The run ended early for a reason that the message names; it can be resumed.
        KeyboardInterrupt: It was interrupted; it can be resumed.
    """
    trainer = make_trainer(config)
    with folder.locked():
        if resume:
            same_run(folder.config(), config)
        data = data or load_data(config, folder if resume else None)
        folder.write_config(config)
        run = StartedRun(
            config,
            folder,
            data.task_set,
            training_order(data.train, config),
            validation_order(data.val, config),
            data.policy,
            resolve_device(config.device),
            data.answers,
            preloaded or {},
            on_progress=on_progress,
        )
        write_dataset(folder.path / "data" / "train.parquet", run.train, "train")
        write_dataset(folder.path / "data" / "val.parquet", run.val, "val")
        checkpoints = trainer.checkpoints(folder) if resume else {}
        if resume and not checkpoints and folder.read()["status"] == "finished":
            # Starting again would discard the rows of the finished training.
            raise UserError(
                f"{folder.path} has finished and has no checkpoint to continue from "
                "(train.keep_checkpoints=0 keeps none). Start a new training: harness train "
                f"--config {folder.path / 'config.yaml'} --steps {config.train.steps}"
            )
        if checkpoints:
            run.done = max(checkpoints)
            run.validate_first = validation_due(
                config.train, run.steps, run.done
            ) and not validated(run, run.done)
        needed = trainer.prepare(run)
        if checkpoints:
            # Those on the disk are replaced.
            needed = max(0, needed - folder.checkpoint_bytes())

        def set_aside() -> None:
            if resume:
                folder.drop_after(run.done if checkpoints else -1, validation=run.validate_first)

        def result(record: RunRecord) -> Scores:
            return training_result(folder, record, max(trainer.checkpoints(folder), default=0))

        with recorded(run, "train", result, needed=needed, resumed=resume, before=set_aside):
            if run.done < run.steps or run.validate_first:
                run.poll()  # what earlier launches left is known from here on
                with answering(run.answers, config, folder.logs) as run.roles:
                    trainer.fit(run)
        # Unfinished trainings keep their checkpoints to be resumed.
        if config.train.keep_checkpoints == 0:
            _drop_checkpoints(folder)


def _drop_checkpoints(folder: RunFolder) -> None:
    """Remove the checkpoints of a finished training; a removal that is cut off leaves none."""
    dropped = folder.path / ".dropped-checkpoints"
    with undisturbed():
        try:
            folder.checkpoints.rename(dropped)
            shutil.rmtree(dropped)
        except FileNotFoundError:  # a trainer without checkpoints
            pass
        except OSError as error:
            logger.warning("could not remove the checkpoints of %s: %s", folder.path, error)


def _end(
    run: StartedRun,
    status: str,
    reason: str,
    wall_s: float,
    result: Callable[[RunRecord], Scores],
    shadow: Shadow | None,
) -> str:
    """Write how a run ended, and its tables.

    Why the tables could not be written, empty where they were.
    """
    folder = run.folder
    started = folder.read()
    scores = result(started)
    if paid := spent(folder.reward):
        scores["reward_cost"] = paid
    record = closed(started, status, reason, wall_s, scores, changed_data(run.task_set))
    if shadow is not None:
        record["shadow"] = shadow
    return conclude(folder, record)


@contextmanager
def recorded(
    run: StartedRun,
    kind: Literal["train", "eval"],
    result: Callable[[RunRecord], Scores],
    *,
    needed: int = 0,
    resumed: bool = False,
    parent: Parent | None = None,
    before: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Write a run's record before the work in the block, and finish it however the work ends.

    Args:
        result: Computes the result from the rows, given the record.
        needed: Bytes of the checkpoints, including existing ones.
        resumed: Whether the run is resumed: its record keeps the history of its launches.
        parent: The training of the policy.
        before: Called after the check of disk space.

    Raises:
        EnvironmentProblem: The disk has no room for the run.
        RunFailed: The disk got full.
    """
    folder = run.folder
    # A resumed run needs room only for checkpoints that earlier launches have not saved.
    folder.reserve(ROWS_BYTES[kind] + max(needed - folder.checkpoint_bytes(), 0))
    before()
    with start_trace.span("identity of the run"):
        record = run_record(
            run.config,
            folder,
            run.task_set,
            run.train,
            run.val,
            run.model,
            run.device,
            answers=run.answers,
            resumed=resumed,
            kind=kind,
        )
    if kind == "eval":
        record["parent"] = parent
    folder.write(record)
    shadow = None
    if "shadow" in record:
        shadow = ShadowCheck(folder.shadow, run.config.agent, record["shadow"])
        shadow.start()
    began = time.monotonic()
    status, reason = "failed", ""
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status, reason = "interrupted", "interrupted by the user"
        raise
    except HarnessError as error:
        reason = str(error)
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno in FULL:
            raise RunFailed(f"{reason}: {folder.path} has no room for the results") from error
        raise
    finally:
        wall_s = time.monotonic() - began
        with undisturbed():
            checked = None
            if shadow is not None:
                checked = shadow.stop(WAIT_S if status == "finished" else CUT_SHORT_S)
            unwritten = _end(run, status, reason, wall_s, result, checked)
    if unwritten:
        then = ": make room, then `harness train --resume` writes them" if kind == "train" else ""
        raise RunFailed(f"{unwritten}{then}")


def validation_due(train: TrainConfig, steps: int, step: int) -> bool:
    """Return whether a run of `steps` steps is validated after this one."""
    return step == steps or (train.val_every > 0 and step > 0 and step % train.val_every == 0)


def validated(run: StartedRun, step: int) -> bool:
    """Return whether a step's validation succeeded: trainers save a checkpoint before it."""
    rollouts = failed = 0
    for row in run.folder.rows("episodes"):
        if row["phase"] == "val" and row["step"] == step:
            rollouts += 1
            failed += row["reward"] is None
    # An interrupted validation has too few rows, and a resumed run repeats it.
    whole = len(run.val)
    return rollouts >= whole and failed <= run.config.rollout.max_failed_share * whole
