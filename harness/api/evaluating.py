"""Evaluations: checked before anything is written, then carried out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.api.console import PlainConsole
from harness.api.display import counted
from harness.api.event_loops import interruptible, own_loop
from harness.api.loaded import LoadedRun
from harness.api.parameters import (
    PathLike,
    Settings,
    default_preset,
    environment_endpoint,
    key_of,
    named_endpoint,
    named_store,
    ordered_settings,
    path,
    plain,
    without,
)
from harness.api.training import say_what_is_awaited
from harness.config import Config, load_config, resolve_device
from harness.config.sections import PolicyConfig
from harness.errors import UserError
from harness.runs.folder import RunFolder
from harness.util.formatting import agent_label, members

if TYPE_CHECKING:
    from rich.console import Console

    from harness.config import Setting
    from harness.policies.roles import Answerer
    from harness.runs.schema import Parent


def evaluate(
    run: PathLike | None = None,
    *,
    agent: str | None = None,
    endpoint: str | None = None,
    model: PathLike | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    step: int | None = None,
    task: str | None = None,
    split: str | None = None,
    read_reserved: bool = False,
    limit: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    store: str | None = None,
    without_parity: bool = False,
    preset: str | None = None,
    config: PathLike | None = None,
    settings: Settings = (),
    runs_dir: PathLike = "runs",
    progress: bool = True,
) -> LoadedRun:
    """Measure accuracy, as `harness eval` does: of a checkpoint, a local policy or an endpoint.

    Args:
        run: A run; its newest checkpoint is measured.
        agent: By default the run's.
        endpoint: An OpenAI-compatible URL ending in /v1; `OPENAI_BASE_URL` if nothing is named.
        model: The endpoint's model name, or a policy to serve here.
        api_key_env: Variable that holds the endpoint's key.
        step: A checkpoint other than the newest.
        task: The task set.
        split: By default the validation split, or the one that the task set has for evaluations.
        read_reserved: Allow a split that is reserved for one reading at the end, which is recorded.
        limit: At most this many tasks, a fixed sample.
        samples: Rollouts of a task, for pass@k and majority votes.
        temperature: 0, the default, is greedy.
        store: URL of a store in a process of its own (`harness store`).
        without_parity: Start without making the parity certificate that a strict agent lacks.
        preset: A preset of `harness config list`.
        config: A YAML file.
        settings: Dotted keys with values, `{"max_turns": 1}`, or texts `key=value`; options
            override them.
        runs_dir: Where the evaluation's folder is made.
        progress: Whether to show on stderr how far it is.

    Returns:
        The evaluation, a run too; its `result` has accuracy, interval and counts.

    Raises:
        UserError: The request cannot be carried out; nothing was started.
        RunFailed: Too large a share of the rollouts brought no result, or the workers keep dying.
        KeyboardInterrupt: It was interrupted.
    """
    given = without(locals(), "progress")
    return (
        Wanted(**given)
        .asked()
        .carry_out(PlainConsole(stderr=True, force_jupyter=False, quiet=not progress))
    )


def measure_agents(
    agents: Sequence[str], console: Console, *, without_parity: bool = False, **options: Any
) -> list[LoadedRun]:
    """Measure several agents one after the other, with the same questions, sampling and policy.

    Args:
        agents: At least two, each once.
        options: As `evaluate` takes them, but for the agent.

    Returns:
        The evaluations in the order of the agents.

    Raises:
        UserError: The request is invalid, or an agent fails parity; nothing was started.
    """
    from harness.parity.report import certify
    from harness.plugins import program_of

    if len(agents) < 2 or len(set(agents)) < len(agents):
        named = ",".join(agents) or "none"
        raise UserError(
            f"--agents takes two agents or more, each once, "
            f"for example reference_sql,crewai_sql; got {named}"
        )
    by_program: dict[str, str] = {}
    for agent in agents:
        by_program.setdefault(program_of(agent), agent)
    if len(by_program) > 1:
        (program, agent), (other_program, other), *_ = by_program.items()
        raise UserError(
            f"--agents: {agent} runs the program {program!r} and {other} runs {other_program!r}, "
            "and a comparison needs agents of one program (`harness plugins`)"
        )
    # All are checked and certified before the first is measured.
    checked = [Wanted(agent=agent, without_parity=True, **options).asked() for agent in agents]
    certify(agents, console.print, leave=without_parity)
    return [evaluation.carry_out(console) for evaluation in checked]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A requested evaluation; `evaluate` explains the fields."""

    run: PathLike | None = None
    agent: str | None = None
    endpoint: str | None = None
    model: PathLike | None = None
    api_key_env: str = "OPENAI_API_KEY"
    step: int | None = None
    task: str | None = None
    split: str | None = None
    read_reserved: bool = False
    limit: int | None = None
    samples: int | None = None
    temperature: float | None = None
    store: str | None = None
    without_parity: bool = False
    preset: str | None = None
    config: PathLike | None = None
    settings: Settings | None = ()
    runs_dir: PathLike = "runs"

    def asked(self) -> Evaluation:
        """Check the request and return the evaluation.

        Raises:
            UserError: The evaluation cannot be carried out.
        """
        from harness.plugins import make_task_set
        from harness.policies.roles import answerers
        from harness.rollout.queue_plugin import queue_spec
        from harness.training.checks import check
        from harness.training.data import load_tasks

        trained = RunFolder.open(Path(self.run)) if self.run is not None else None
        if trained is not None:
            trained.read()  # without a readable record, the origin of a checkpoint is unknown
        resolved = self._resolved(trained)
        check(resolved, trains=False, reads_reserved=self.read_reserved)
        queue_spec()
        return Evaluation(
            resolved,
            Path(self.runs_dir),
            answers=answerers(resolved),
            known=len(load_tasks(resolved, make_task_set(resolved), resolved.task.val_split)),
            trained=trained,
            step=self.step,
            served=trained is not None or self._served,
            endpoint=self.endpoint,
            model=plain(self.model),
            api_key_env=self.api_key_env,
            without_parity=self.without_parity,
        )

    @property
    def _served(self) -> bool:
        """Return whether a policy is served here."""
        return self.model is not None and self.endpoint is None

    def _resolved(self, trained: RunFolder | None) -> Config:
        from harness.plugins import task_set_spec

        # A run's own configuration names its split; a task set that is named here replaces both.
        named = task_set_spec(self.task).eval_split if self.task is not None else ""
        split = self.split if self.split is not None else named or None
        options: dict[str, object] = {
            "task__name": self.task,
            "task__val_split": split,
            "task__val_limit": self.limit,
        }
        options |= {"eval__samples": self.samples, "eval__temperature": self.temperature}
        overrides = ordered_settings(self.settings) + ordered_settings(
            {}, **options, rollout__store=named_store(self.store)
        )
        if trained is not None:
            if self.endpoint is not None or self.model is not None:
                raise UserError("give either a run or --endpoint/--model, not both")
            return of_a_run(trained, overrides, self.agent)
        if self.step is not None:
            raise UserError(
                f"--step {self.step} selects a checkpoint of a run, and no run is given: name one"
            )
        if not (self._served or self.endpoint or environment_endpoint()):
            raise UserError(
                "nothing to measure: give a run folder, --endpoint URL --model NAME "
                "(or set OPENAI_BASE_URL), "
                "or --model POLICY"
            )
        preset = self.preset
        if preset is None and self.config is None:
            preset = (
                default_preset(self.task, resolve_device("auto")) if self._served else "endpoint"
            )
        return load_config(preset, path(self.config), overrides, agent=self.agent)


def of_a_run(trained: RunFolder, overrides: list[Setting], agent: str | None) -> Config:
    """Return a training's configuration for its evaluation.

    Its task limit applies to its own validation only.
    """
    if "task.val_split" in (named := {*map(key_of, overrides)}) and "task.val_limit" not in named:
        overrides = [*overrides, "task.val_limit=null"]
    return load_config(None, trained.path / "config.yaml", overrides, agent=agent)


@dataclass
class Evaluation:
    """A checked evaluation.

    Attributes:
        known: Tasks of the split.
        answers: Endpoints of roles with their own models.
        trained: The run that provides the checkpoint.
        served: Whether a checkpoint or a policy is served here; otherwise an endpoint is measured.
    """

    config: Config
    runs_dir: Path
    known: int
    answers: Mapping[str, Answerer]
    trained: RunFolder | None
    step: int | None
    served: bool
    endpoint: str | None
    model: str | None
    api_key_env: str
    without_parity: bool = False

    def carry_out(self, console: Console) -> LoadedRun:
        """Run the evaluation.

        Args:
            console: Console for the progress.
        """
        with interruptible(), own_loop(), ExitStack() as work:
            return self._measure(console, work)

    def _measure(self, console: Console, work: ExitStack) -> LoadedRun:
        from harness.policies import fetched, parser_of
        from harness.policies.export import checkpoint_dir, checkpoint_model
        from harness.policies.servers import Engine, server
        from harness.training.checks import check_device
        from harness.training.evaluation import evaluate
        from harness.util.endpoints import Endpoint

        config, label = self.config, f"eval-{agent_label(self.config.agent)}"
        if unseen := self._unseen_program():
            console.print(unseen)
        parent: Parent | None = None
        # Create the folder after all checks, so that an invalid request leaves no empty run.
        if not self.served:
            policy = ""
            endpoint = Endpoint(
                *named_endpoint(self.endpoint, self.model, self.api_key_env, console.print)
            )
            self._certify(console)
            folder = RunFolder.create(self.runs_dir, label)
            work.enter_context(folder.dropped_without_record())
        else:
            check_device(config)
            if self.trained is not None:
                policy = str(checkpoint_model(self.trained, self.step))
            else:
                policy = fetched(PolicyConfig(path=str(self.model)))
            self._certify(console)
            folder = RunFolder.create(self.runs_dir, label)
            length = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
            work.enter_context(folder.dropped_without_record())
            log = folder.logs / "policy.log"
            device = resolve_device(config.device)
            engine = Engine(parser_of(config, policy, device), config.batch_invariant(device))
            key = secrets.token_urlsafe(24)
            serving = server(device)(policy, device, length, log, engine, key=key)
            endpoint = Endpoint(work.enter_context(serving), policy, key, token_ids=True)
            if self.trained is not None:
                parent = {
                    "run": self.trained.id,
                    "step": checkpoint_dir(self.trained, self.step)[0],
                }
        say_what_is_awaited(console, config, folder)
        with counted(
            console, f"{agent_label(config.agent)} on {config.task.name}/{config.task.val_split}"
        ) as show:
            evaluate(config, folder, endpoint, show, policy, parent, self.answers)
        return LoadedRun.read(folder)

    def _unseen_program(self) -> str:
        """Return a remark if the policy was trained with another program than this one."""
        from harness.plugins import program_of

        if self.trained is None:
            return ""
        record, program = self.trained.read(), program_of(self.config.agent)
        before = record["identity"].get("program")
        if before in (None, program):
            return ""
        return (
            f"{self.config.agent} runs the program {program!r}. "
            f"The policy was trained in {before!r} and never saw "
            f"prompts of {program!r}, so a low figure says nothing about the agent. "
            f"An agent of {before!r}: --agent {members(record['agent'])[0]}"
        )

    def _certify(self, console: Console) -> None:
        """Make the certificate that a comparison requires, after all other checks."""
        from harness.parity.report import certify

        certify([self.config.agent], console.print, leave=self.without_parity)
