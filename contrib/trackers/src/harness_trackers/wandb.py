"""Weights & Biases: offline files, or a server."""

from __future__ import annotations

import os

from harness.errors import RunFailed
from harness.runs.reading import Run
from harness_trackers.contents import Contents, contents
from harness_trackers.reach import be_quick, lost, one_line


def export(run: Run, where: str) -> str:
    """Send a run to the server of `WANDB_BASE_URL` or `WANDB_API_KEY`, otherwise write it offline.

    Args:
        where: Folder of wandb's own files; by default the current one.

    Returns:
        How to view it.

    Raises:
        RunFailed: The server refused it, or did not answer.
    """
    be_quick()
    if fault := lost("wandb"):
        raise RunFailed(f"Weights & Biases: {fault}")
    import wandb

    exported = contents(run)
    online = any(os.environ.get(name) for name in ("WANDB_BASE_URL", "WANDB_API_KEY"))
    try:
        return _logged(exported, where, online)
    except wandb.errors.Error as error:
        raise RunFailed(f"Weights & Biases: {one_line(error)}") from error


def _logged(exported: Contents, where: str, online: bool) -> str:
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "harness"),
        id=exported.name,
        name=exported.name,
        group=exported.agent,
        dir=where or None,
        config=exported.config,
        mode="online" if online else "offline",
        resume="never" if online else None,
        settings=wandb.Settings(
            silent=True, disable_git=True, save_code=False, x_disable_stats=True, console="off"
        ),
    )
    by_step = exported.by_step()
    for step, values in by_step.items():
        run.log(values, step=step)
    table = wandb.Table(columns=list(exported.episodes), data=exported.rows())
    run.log({"episodes": table}, step=max(by_step, default=0))
    run.summary.update(exported.figures)
    place = str(run.url) if online else os.path.dirname(run.dir)
    run.finish()
    return place if online else f"wandb sync {place}"
