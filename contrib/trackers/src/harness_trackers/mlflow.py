"""MLflow: a tracking server, or a folder."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import RunFailed
from harness.runs.reading import Run
from harness_trackers.contents import Contents, contents
from harness_trackers.reach import be_quick, one_line, silent, without_keys

BATCH = 1_000
"""Measurements per request, MLflow's maximum."""


def export(run: Run, where: str) -> str:
    """Log a run to the server at `where` or `MLFLOW_TRACKING_URI`, or to a folder.

    The folder is `mlruns` by default.

    Raises:
        RunFailed: MLflow refused it, or did not answer.
    """
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow requires explicit consent
    be_quick()
    from mlflow.exceptions import MlflowException

    place = where or os.environ.get("MLFLOW_TRACKING_URI") or "mlruns"
    uri = place if "://" in place else Path(place).absolute().as_uri()
    if uri.startswith("http") and (fault := silent(uri)):
        raise RunFailed(f"MLflow: {fault}")
    try:
        return f"{without_keys(uri)}, experiment harness, run {_logged(contents(run), uri)}"
    except MlflowException as error:
        raise RunFailed(f"MLflow at {without_keys(uri)}: {one_line(error, uri)}") from error


def _logged(exported: Contents, uri: str) -> str:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(uri)
    existing = client.get_experiment_by_name("harness")
    experiment = existing.experiment_id if existing else client.create_experiment("harness")
    run = client.create_run(
        experiment,
        run_name=exported.name,
        tags={"agent": exported.agent, "harness_run": exported.name},
    )
    run_id, now = run.info.run_id, run.info.start_time
    metrics = []
    for name, values in exported.curves.items():
        for step, value in values.items():
            metrics.append(Metric(_named(name), value, now, step))
    # A prefix, since a figure may have the name of a curve.
    for name, figure in exported.figures.items():
        if isinstance(figure, int | float):
            metrics.append(Metric(f"final/{_named(name)}", float(figure), now, 0))
    for at in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[at : at + BATCH])
    params = [Param(_named(name), str(value)[:6000]) for name, value in exported.config.items()]
    for at in range(0, len(params), 100):
        client.log_batch(run_id, params=params[at : at + 100])
    client.log_dict(run_id, exported.figures, "figures.json")
    client.log_dict(run_id, exported.episodes, "episodes.json")
    status = "FINISHED" if exported.figures["status"] == "finished" else "FAILED"
    client.set_terminated(run_id, status)
    return str(run_id)


def _named(name: str) -> str:
    """Return a name that MLflow accepts."""
    return "".join(sign if sign.isalnum() or sign in "_-./ " else "-" for sign in name)
