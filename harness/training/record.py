"""Write `run.json`: what ran, how to repeat it, and which runs are comparable."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any, Literal, cast

import harness
from harness.config import Config
from harness.config.sections import EvalConfig
from harness.contracts.environments import Environment
from harness.contracts.hookspecs import RewardSpec
from harness.contracts.tasks import TaskSet
from harness.plugins import (
    agent_spec,
    answer_form,
    environment,
    environment_of,
    framework_versions,
    program,
    program_of,
    registry,
    reward_identity,
    reward_of,
    reward_spec,
    reward_version,
    trained_by,
)
from harness.policies import parser_of
from harness.policies.demonstrations import demonstrations_in
from harness.policies.roles import Answerer
from harness.records import AGENT_OUTCOMES, Task
from harness.rollout.request import sampling_of
from harness.runs.folder import RunFolder, now
from harness.runs.replies import replies_of
from harness.runs.rows import Episode
from harness.runs.schema import (
    SCHEMA_VERSION,
    Distribution,
    Identity,
    Launch,
    Result,
    RunRecord,
    Sampling,
    Scores,
)
from harness.runs.tables import step_rows
from harness.runs.training_signal import (
    least_to_train,
    mixed_groups,
    share_mixed,
    why_flat,
    why_untaught,
)
from harness.training.engine_variables import engine_variables
from harness.training.provenance import (
    available_cores,
    commit,
    gpu_service,
    hardware,
    library_versions,
    load,
    model_hash,
)
from harness.training.task_order import order_hash
from harness.util.endpoints import is_endpoint_label
from harness.util.formatting import agent_label, is_graded, members, most_often
from harness.util.parsing import digest

log = logging.getLogger(__name__)

STUDY_VARIABLE = "HARNESS_STUDY"
"""Environment variable in which a study tells a run what it is: JSON with name, job and
runs_at_once.
"""


def run_record(
    config: Config,
    folder: RunFolder,
    task_set: TaskSet,
    train: Sequence[Task],
    val: Sequence[Task],
    model_path: str,
    device: str,
    *,
    answers: Mapping[str, Answerer] | None = None,
    resumed: bool = False,
    kind: Literal["train", "eval"] = "train",
) -> RunRecord:
    """The record of a run that starts now; a resumed one keeps its history under `launches`."""
    from harness.parity.certificate import certificate_for, fingerprint

    spec, current = agent_spec(config.agent), fingerprint(config.agent)
    launches = folder.read()["launches"] if resumed else []
    study = json.loads(os.environ.get(STUDY_VARIABLE) or "null")
    code = commit()
    launch: Launch = {"started": now(), "commit": code, "cores": available_cores()}
    if study:
        launch["runs_at_once"] = study["runs_at_once"]
    # Measure at the start only: later the run itself causes the load.
    if (at_start := load()) is not None:
        launch["load"] = at_start
    if device == "cuda" and (service := gpu_service()):
        launch["gpu_service"] = service
    agents = members(config.agent)
    record: RunRecord = {
        "schema_version": SCHEMA_VERSION,
        "id": folder.id,
        "kind": kind,
        "status": "running",
        "agent": agent_label(config.agent),
        "agent_match": trained_by(config.agent, config.agent_match),
        "seed": config.seed,
        "launches": [*launches, launch],
        "study": study,
        "harness_version": harness.__version__,
        "commit": code,
        "versions": library_versions(),
        "frameworks": framework_versions(spec),
        "hardware": hardware(device),
        "device": device,
        "tasks": {"train": len({task.id for task in train}), "val": len(val)},
        "graded": graded(reward_of(config)),
        "identity": identity(config, task_set, train, val, model_path, device, kind, answers),
        "parity": certificate_for(config.agent, current),
        "agent_fingerprint": digest(current),
        "agent_source": current.get("agent_source", ""),
        "agent_distribution": _distribution(agents[0]) if len(agents) == 1 else None,
        "config": config.dump(),
        "result": None,
    }
    if model_path and (parser := parser_of(config, model_path, device)):
        record["tool_parser"] = parser
    if spec.strict:
        record["shadow"] = folder.read().get("shadow") if resumed else None
    if len(agents) > 1:
        record["mixture"] = {}
        for name in agents:
            record["mixture"][agent_label(name)] = _distribution(name)
    if answers:
        record["roles"] = {role: one.name for role, one in answers.items()}
    return record


def _distribution(agent: str) -> Distribution | None:
    """Return the package of an agent; None for an agent in a file, which belongs to no plugin."""
    plugin = registry().state(registry().owner("agent", agent))
    if plugin is None:
        return None
    return {"name": plugin.distribution, "version": plugin.version}


def identity(
    config: Config,
    task_set: TaskSet,
    train: Sequence[Task],
    val: Sequence[Task],
    model_path: str,
    device: str,
    kind: Literal["train", "eval"] = "train",
    answers: Mapping[str, Answerer] | None = None,
) -> Identity:
    """Return the identity, which runs that differ only in agent, trained roles or seed share."""
    data = config.dump()
    measured = config.eval if kind == "eval" else EvalConfig()
    of_program = program(program_of(config.agent))
    identified: Identity = {
        "program": program_of(config.agent),
        "prompts": of_program.prompts_hash,
        "task_set": dict(task_set.describe()),
        "train_tasks": order_hash(sorted(train, key=lambda task: task.id)),
        "val_tasks": order_hash(val),
        "data_order": order_hash(train),
        "reward": reward_version(reward_spec(config.reward.name)),
        "reward_options": reward_identity(
            reward_spec(config.reward.name), data["reward"]["options"], "reward.options"
        ),
        "reward_shuffled": config.reward.shuffle,
        "model": model_hash(model_path),
        "sampling_train": cast(Sampling, sampling_of(config, "train")),
        "sampling_val": cast(Sampling, sampling_of(config, "val", measured.temperature)),
        "max_prompt_tokens": config.sampling.max_prompt_tokens,
        "max_turns": config.max_turns,
        "sandbox": data["sandbox"],
        "group_size": config.rollout.group_size,
        "rollout_timeout_s": config.rollout.timeout_s,
        "rollout_retries": config.rollout.retries,
        "train": config.train.identity(device, config.deterministic, of_program.calls_tools),
        "steps": len(train) // config.train.batch_size,
        "deterministic": config.deterministic,
        "verl": data["verl"],
    }
    # Further keys appear only with unusual values, so that older runs keep their identity.
    form = answer_form(config.reward.name, config.reward.options)
    if of_program.inputs({}, form):  # the program shows the form to the policy
        identified["answer_form"] = form
    reward = reward_of(config)
    if (reward.low, reward.high) != (0, 1):
        identified["reward_range"] = [reward.low, reward.high]
    if not is_endpoint_label(model_path):
        if config.batch_invariant(device):
            identified["batch_invariant"] = True
        if variables := engine_variables(device):
            identified["engine_variables"] = variables
    if kind == "train" and config.reward.training is not None:
        identified["reward_training"] = training_reward(config)
    if config.reward.inverted:
        identified["reward_inverted"] = config.reward.inverted
    shown = demonstrations_in(model_path)
    if shown.by_role:
        identified["demonstrations"] = digest({"by_role": shown.by_role, "tasks": shown.tasks})
    if measured.samples > 1:
        identified["samples"] = measured.samples
    if answers:
        identified["role_models"] = role_models(answers)
    if of_program.calls_tools:
        identified["tools"] = tools_hash(
            environment(environment_of(config.task.name)), [*train, *val], data["sandbox"]
        )
    return identified


def training_reward(config: Config) -> dict[str, Any]:
    """Return version and identity of the reward that trains; empty without one of its own."""
    if config.reward.training is None:
        return {}
    spec = reward_spec(config.reward.training)
    options = reward_identity(spec, config.reward.training_options, "reward.training_options")
    return {"reward": reward_version(spec), "options": options}


def role_models(answers: Mapping[str, Answerer]) -> dict[str, str]:
    """Return the source of each role's answers: a policy's hash or commit, or an endpoint."""
    sources = {}
    for role, answerer in answers.items():
        sources[role] = model_hash(answerer.folder) if answerer.folder else answerer.name
    return sources


def tools_hash(
    environment: Environment, tasks: Sequence[Task], limits: Mapping[str, object]
) -> str:
    """Return a hash of the tools as offered to a model, byte for byte.

    Over all tasks if they differ.
    """
    different = {task.id: task for task in tasks}
    offered = set()
    for task in different.values():
        tools = environment.tools_for(environment.payload(task, limits))
        offered.add(json.dumps([tool.definition for tool in tools]))
    return digest({"tools": sorted(offered)})


def graded(reward: RewardSpec) -> bool:
    """Return whether a reward declares that its means are no accuracy.

    Its values may show that as well.
    """
    return reward.graded or (reward.low, reward.high) != (0, 1)


def changed_data(task_set: TaskSet) -> list[str]:
    """Return changed files of the task set of an ending run, and report them once."""
    check = getattr(task_set, "check", list)  # the method may be missing
    changed: list[str] = check()
    if changed:
        log.error(
            "the task set changed during the run, "
            "so its scores mean nothing and it is not compared: %s",
            ", ".join(changed),
        )
    return changed


def closed(
    record: RunRecord,
    status: str,
    reason: str,
    wall_s: float,
    scores: Scores,
    data_changed: Sequence[str] = (),
) -> RunRecord:
    """Return the record at a run's end: its last launch closed, and the `result` of all launches.

    Args:
        scores: Figures from the rows of all launches.
        data_changed: Result of `changed_data`, to which those of earlier launches are added.
    """
    *earlier, last = record["launches"]
    launch: Launch = {
        **last,
        "ended": now(),
        "status": status,
        "reason": reason,
        "wall_s": round(wall_s, 2),
        "data_changed": list(data_changed),
    }
    changed = set(data_changed)
    for before in earlier:
        changed.update(before.get("data_changed", ()))
    # An earlier launch that was killed has no time.
    earlier_s = sum(before.get("wall_s", 0.0) for before in earlier)
    result: Result = {
        **scores,
        "data_changed": sorted(changed),
        "wall_s": round(wall_s + earlier_s, 2),
    }
    launches = [*earlier, launch]
    end: RunRecord = {**record, "status": status, "launches": launches, "result": result}
    if reason:
        end["reason"] = reason
    return end


def training_result(folder: RunFolder, record: RunRecord, checkpointed: int = 0) -> Scores:
    """Return the result of a training from the rows on disk.

    Args:
        checkpointed: The step of the newest checkpoint: the last step's row is lost where a run was
            cut off between its checkpoint and its log.
    """
    episodes = list(folder.rows("episodes"))
    rows = step_rows(list(folder.rows("steps")), episodes)
    curve: dict[float, float] = {}
    step_s: dict[float, float] = {}
    gaps = []
    for row in rows:
        # An interrupted validation is no measurement.
        if "val/reward" in row and row["val/rollouts"] >= record["tasks"]["val"]:
            curve[row["step"]] = row["val/reward"]
        # A step without its time did not finish.
        if "step_s" in row:
            step_s[row["step"]] = row["step_s"]
            if "rollout_probs_diff" in row:
                gaps.append(row["rollout_probs_diff"])
    last_step = max(curve, default=None)
    # The result describes the final policy, so failures and flags of earlier steps do not count.
    last: list[Episode] = []
    flags: Counter[str] = Counter()
    for episode in episodes:
        if episode["phase"] == "val" and episode["step"] == last_step:
            last.append(episode)
            flags.update(episode["reward_flags"])
    failed, why = agent_failures(last)
    signal, flat = _signal(record, episodes)
    replies = replies_of(last)
    return {
        "graded": record["graded"] or is_graded(row["reward"] for row in episodes),
        "reward_flags": dict(flags),
        "agent_failed": failed,
        "agent_failure": why,
        "val_accuracy_initial": curve.get(0),
        # The initial policy's accuracy is no result of a training.
        "val_accuracy_final": curve[last_step] if last_step is not None and last_step > 0 else None,
        "val_curve": {str(step): value for step, value in sorted(curve.items())},
        "steps": int(max(*step_s, checkpointed, 0)),
        "signal": signal,
        "no_signal": flat or why_untaught(rows),
        "step_s_median": round(median_high(step_s.values()), 3) if step_s else None,
        "rollout_probs_diff_max": max(gaps, default=None),
        **({"replies": replies} if replies else {}),
    }


def _signal(record: RunRecord, episodes: Sequence[Episode]) -> tuple[float | None, str]:
    """Return the share of groups with a training signal, and why there is none.

    Not known where calls are paid differently.
    """
    identity = record["identity"]
    if identity["train"].get("credit", "shared") != "shared":
        return None, ""
    least = least_to_train(identity["train"])
    grouped, paid = [], []
    for row in episodes:
        if row["phase"] == "train":
            used = row.get("used_reward")
            grouped.append((row["step"], row["task_id"], used))
            paid.append((used, row["reward_reason"]))
    share = share_mixed(mixed_groups(grouped, least).values())
    if share != 0:
        return share, ""
    low, high = identity.get("reward_range", [0.0, 1.0])
    return share, why_flat(paid, (low, high), least)


def agent_failures(rows: Sequence[Episode]) -> tuple[int, str]:
    """Return how many rollouts the agent failed, and the most common reason."""
    reasons: Counter[str] = Counter()
    for row in rows:
        if row["outcome"] in AGENT_OUTCOMES:
            reasons[row["reward_reason"]] += 1
    return reasons.total(), most_often(reasons) if reasons else ""
