"""Recognize runs of a project that has moved since."""

from __future__ import annotations

from functools import cache

from harness.compare.states import config_hash
from harness.errors import PluginError
from harness.parity.certificate import fingerprint
from harness.runs.reading import Run
from harness.util.formatting import agent_label
from harness_study.plan import Job


def has_moved_agent(run: Run, job: Job) -> bool:
    """Return whether a run is the job's, except that its agent's file had another path.

    The run must be of this job by its record, with the same name and source of its agent as now,
    and the same configuration otherwise. Without a recorded source, the path decides.
    """
    record, agent = run.record, job.config.agent
    study, source = record.get("study"), record.get("agent_source")
    if not source or study is None or study["job"] != job.key:
        return False
    if record["agent"] != agent_label(agent) or record["config"].get("agent") == agent:
        return False
    at_the_new_path = {**record["config"], "agent": agent}
    return config_hash(at_the_new_path) == job.config_hash and source_of(agent) == source


@cache
def source_of(agent: str) -> str | None:
    """Return the hash of an agent's source as it is now; None if the agent is not installed."""
    try:
        return fingerprint(agent).get("agent_source")
    except PluginError:
        return None
