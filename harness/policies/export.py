"""Checkpoints as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UserError
from harness.plugins import make_trainer
from harness.policies.weights import damage
from harness.runs.folder import RunFolder
from harness.runs.locks import held


def checkpoint_dir(folder: RunFolder, step: int | None = None) -> tuple[int, Path]:
    """Return step and folder of a run's checkpoint, by default the newest.

    Raises:
        UserError: There is no such checkpoint; the message names existing ones.
    """
    there = make_trainer(folder.config()).checkpoints(folder)
    if not there:
        trained = f"it has trained {_trained(folder)} steps"
        finished = folder.read()["status"] == "finished"
        if finished and folder.config().train.keep_checkpoints == 0:
            trained += ", and train.keep_checkpoints=0 keeps none of a finished training"
        raise UserError(f"{folder.path} has no checkpoint; {trained}")
    if step is None:
        step = max(there)
    if step not in there:
        raise UserError(
            f"{folder.path} has no checkpoint of step {step}; "
            f"it has {', '.join(map(str, sorted(there)))} "
            "(train.save_every and train.keep_checkpoints say which are made and how many stay)"
        )
    return step, there[step]


def checkpoint_model(folder: RunFolder, step: int | None = None) -> Path:
    """Return a checkpoint as a Hugging Face folder, created in its folder on first use.

    Raises:
        UserError: The exported folder is damaged.
    """
    _, checkpoint = checkpoint_dir(folder, step)
    target = (
        checkpoint / "hf" if checkpoint.is_dir() else checkpoint.with_name(f"{checkpoint.stem}-hf")
    )
    made = target / "config.json"
    if not made.is_file():
        with held(target.parent):  # several evaluations of one checkpoint may start concurrently
            if not made.is_file():
                if target.is_dir() and any(target.iterdir()):
                    raise _damaged(target, "config.json is missing")
                make_trainer(folder.config()).export(folder, checkpoint, target)
    for weights in sorted(target.glob("*.safetensors")):
        if problem := damage(weights):
            raise _damaged(target, f"{weights.name}: {problem}")
    return target


def _damaged(target: Path, problem: str) -> UserError:
    return UserError(
        f"{target} is damaged: {problem}. Remove that folder; it is made again from the checkpoint"
    )


def _trained(folder: RunFolder) -> int:
    result = folder.read()["result"]
    return int(result.get("steps", 0)) if result else 0
