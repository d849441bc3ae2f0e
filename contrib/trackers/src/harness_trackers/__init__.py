"""Export of runs to trackers: curves, configuration, final figures, a sample of episodes."""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, TrackerSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec("runs export", "harness_trackers.cli:export", "Export a run to a tracker."),
    ]


@hookimpl
def harness_trackers() -> list[TrackerSpec]:
    return [
        TrackerSpec("tensorboard", "harness_trackers.tensorboard:export", "TensorBoard"),
        TrackerSpec("wandb", "harness_trackers.wandb:export", "Weights & Biases"),
        TrackerSpec("mlflow", "harness_trackers.mlflow:export", "MLflow"),
        TrackerSpec("swanlab", "harness_trackers.swanlab:export", "SwanLab"),
        TrackerSpec("hf", "harness_trackers.hf:export", "a data set of Hugging Face"),
    ]
