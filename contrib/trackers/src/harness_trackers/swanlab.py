"""SwanLab: offline files, or a server."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import RunFailed
from harness.runs.reading import Run
from harness_trackers.contents import Contents, contents
from harness_trackers.reach import lost, one_line


def export(run: Run, where: str) -> str:
    """Send a run to SwanLab if `SWANLAB_API_KEY` is set, otherwise write it offline.

    `SWANLAB_API_HOST` names a server of your own.

    Args:
        where: Folder of SwanLab's own files; by default `swanlog`.

    Returns:
        How to view it.

    Raises:
        RunFailed: The server refused it, or did not answer.
    """
    if fault := lost("swanlab"):
        raise RunFailed(f"SwanLab: {fault}")
    try:
        return _logged(
            contents(run), Path(where or "swanlog"), online="SWANLAB_API_KEY" in os.environ
        )
    except ImportError:
        raise
    except Exception as error:  # its errors have no common class
        raise RunFailed(f"SwanLab: {one_line(error)}") from error


def _logged(exported: Contents, where: Path, online: bool) -> str:
    # Suppress SwanLab's own lines, because this function returns what to do next.
    os.environ.setdefault("SWANLAB_LOG_LEVEL", "error")
    import swanlab

    where.mkdir(parents=True, exist_ok=True)
    # Final figures are constants of a run, not points of a curve.
    config: dict[str, object] = dict(exported.config)
    for name, value in exported.figures.items():
        config[f"final/{name}"] = value
    run = swanlab.init(
        project=os.environ.get("SWANLAB_PROJ_NAME", "harness"),
        experiment_name=exported.name,
        group=exported.agent,
        logdir=str(where),
        config=config,
        mode="cloud" if online else "offline",
        settings=swanlab.Settings(
            metadata_collect=False, requirements_collect=False, log_proxy_type="none"
        ),
    )
    by_step = exported.by_step()
    for step, values in by_step.items():
        run.log(values, step=step)
    table = swanlab.echarts.Table()
    table.add(list(exported.episodes), exported.rows())
    run.log({"episodes": table}, step=max(by_step, default=0))
    place = str(swanlab.get_url() if online else run.public.run_dir)
    run.finish()
    return place if online else f"swanlab sync {place}"
