"""Trainings: checked before anything is written, then carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.api.console import PlainConsole
from harness.api.display import TrainingDisplay
from harness.api.event_loops import interruptible, own_loop
from harness.api.loaded import LoadedRun
from harness.api.parameters import (
    PathLike,
    Settings,
    default_preset,
    key_of,
    named_store,
    ordered_settings,
    path,
    without,
)
from harness.api.start import keep_start_s, measured_start_s, preloaded_modules
from harness.config import Config, Setting, load_config, resolve_device
from harness.errors import RunFailed, UserError
from harness.runs.folder import RunFolder
from harness.util import start_trace
from harness.util.formatting import about, agent_label

if TYPE_CHECKING:
    from rich.console import Console

    from harness.runs.progress import Progress
    from harness.training.data import Data

During = Callable[[RunFolder], AbstractContextManager[Any]]


def train(
    agent: str | None = None,
    *,
    preset: str | None = None,
    config: PathLike | None = None,
    settings: Settings = (),
    task: str | None = None,
    model: PathLike | None = None,
    n_runners: int | None = None,
    store: str | None = None,
    agent_match: str | None = None,
    seed: int | None = None,
    steps: int | None = None,
    ci_fast: bool = False,
    ci: bool = False,
    resume: PathLike | None = None,
    without_parity: bool = False,
    runs_dir: PathLike = "runs",
    progress: bool = True,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> LoadedRun:
    """Train an agent with GRPO, as `harness train` does; returns when it has ended.

    Args:
        agent: The agent to train, for example `langgraph_sql`.
        preset: A preset of `harness config list`.
        config: A YAML file, for example a run's `config.yaml`.
        settings: Dotted keys with values, `{"train.steps": 20}`, or texts `key=value`; they
            override all options
            but `agent`, `agent_match`, `seed` and `steps`.
        task: The task set.
        model: The policy: bundled, a folder, or a Hugging Face id.
        n_runners: Runner processes.
        store: URL of a store in a process of its own (`harness store`).
        agent_match: Regular expression: the roles to train.
        seed: Of data order, sampling and optimizer.
        steps: Total number of training steps.
        ci_fast: One step on a few questions.
        ci: Twenty steps.
        resume: A run to resume.
        without_parity: Start without making the parity certificate that a strict agent lacks.
        runs_dir: Where the run's folder is made.
        progress: Whether to show on stderr how far it is.
        on_progress: Called a few times a second.

    Returns:
        The run.

    Raises:
        UserError: The request cannot be carried out; nothing was started.
        RunFailed: The run ended early for a reason that the message names; it can be resumed.
        KeyboardInterrupt: It was interrupted; the message names the command that resumes it.
    """
    given = without(locals(), "progress", "on_progress")
    return (
        Wanted(**given)
        .asked()
        .carry_out(
            PlainConsole(stderr=True, force_jupyter=False, quiet=not progress),
            on_progress=on_progress,
        )
    )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A requested training; `train` explains the fields."""

    agent: str | None = None
    preset: str | None = None
    config: PathLike | None = None
    settings: Settings | None = ()
    task: str | None = None
    model: PathLike | None = None
    n_runners: int | None = None
    store: str | None = None
    agent_match: str | None = None
    seed: int | None = None
    steps: int | None = None
    ci_fast: bool = False
    ci: bool = False
    resume: PathLike | None = None
    without_parity: bool = False
    runs_dir: PathLike = "runs"

    def asked(self) -> Training:
        """Check the request and return the training.

        Raises:
            UserError: The training cannot be carried out.
        """
        from harness.plugins import trained_by
        from harness.training.checks import check

        store = named_store(self.store)
        training = (
            self._new(store) if self.resume is None else self._resumed(Path(self.resume), store)
        )
        if not training.finished:
            check(training.config)
            training.config.agent_match = trained_by(
                training.config.agent, training.config.agent_match
            )
        return training

    def _new(self, store: str | None) -> Training:
        if self.ci and self.ci_fast:
            raise UserError("--ci is twenty steps and --ci-fast is one: give one of them")
        # First, because explicit names take precedence.
        overrides = _ci(fast=self.ci_fast) if self.ci or self.ci_fast else []
        placed = {"rollout__runners": self.n_runners, "rollout__store": store}
        overrides += ordered_settings(
            self.settings, task__name=self.task, policy__path=self.model, **placed
        )
        # After `settings`, which may have a number of steps too.
        overrides += ordered_settings({}, train__steps=self.steps)
        preset = self.preset
        named = {"agent": self.agent, "agent_match": self.agent_match, "seed": self.seed}
        if preset is None and self.config is None:
            # The preset depends on the device, and some settings exist only in the preset.
            of_device = [item for item in overrides if key_of(item) == "device"]
            device = load_config(None, None, of_device).device
            preset = default_preset(self.task, resolve_device(device))
        return Training(
            load_config(preset, path(self.config), overrides, **named),
            Path(self.runs_dir),
            without_parity=self.without_parity,
        )

    def _of_its_own(self, resume: Path, agent: str) -> None:
        """Refuse options that a resumed run has in its own configuration."""
        if self.agent is not None and agent_label(self.agent) != agent:
            raise UserError(
                f"the run's agent is {agent}, and --resume continues with it: leave --agent out, "
                f"or train {self.agent} in a new run, without --resume {resume}"
            )
        options = {
            "--agent": self.agent is not None,
            "--agent-match": self.agent_match is not None,
            "--preset": self.preset is not None,
            "--config": self.config is not None,
            "--task": self.task is not None,
            "--model": self.model is not None,
            "--seed": self.seed is not None,
            "--n-runners": self.n_runners is not None,
            "--twenty-steps": self.ci,
            "--one-step": self.ci_fast,
        }
        given = [name for name, is_given in options.items() if is_given]
        if given:
            raise UserError(
                "--resume continues with the run's own configuration: "
                f"leave out {', '.join(given)}. "
                "More steps: --steps N; other places of data: --set"
            )

    def _resumed(self, resume: Path, store: str | None) -> Training:
        from harness.plugins import make_trainer
        from harness.training.data import same_run

        folder = RunFolder.open(resume)
        before = folder.read()
        kind, result = before["kind"], before["result"]
        if kind != "train":
            raise UserError(
                f"{resume} is of kind {kind!r}, not a training: "
                f"start it again with `harness {kind}`"
            )
        settings = ordered_settings(self.settings, rollout__store=store)
        self._of_its_own(resume, before["agent"])
        resolved = load_config(None, folder.path / "config.yaml", settings)
        if self.steps is not None:
            resolved.train.steps = self.steps
        same_run(folder.config(), resolved)
        finished = ""
        # A finished training continues only for more steps.
        if before["status"] == "finished" and result:
            done = result["steps"]
            if self.steps is not None and self.steps < done:
                raise UserError(
                    f"--steps {self.steps} is less than the {done} that {resume} has trained. "
                    f"--steps {2 * done} continues it"
                )
            if done >= (resolved.train.steps or 0):
                finished = f"{resume} finished after its {done} steps"
                if make_trainer(resolved).checkpoints(folder):
                    finished += f"; --steps {2 * done} continues it"
        return Training(resolved, folder.path.parent, folder, finished)


@dataclass
class Training:
    """A checked request for a training.

    Attributes:
        before: The run to resume.
        finished: A sentence that says that no work is left; empty if there is some.
        without_parity: Whether to start without the certificate that a new run's agent lacks.
    """

    config: Config
    runs_dir: Path
    before: RunFolder | None = None
    finished: str = ""
    without_parity: bool = False

    def carry_out(
        self,
        console: Console,
        *,
        panel: bool = True,
        during: During = lambda folder: nullcontext(),
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> LoadedRun:
        """Run the training.

        Args:
            console: Console for the live display: a panel on a terminal, or lines.
            panel: Whether to draw a panel.
            during: Context manager that is active while the run's folder is written.
        """
        from harness.parity.report import certify
        from harness.training.checks import check_machine
        from harness.training.data import load_data

        if self.before is not None and self.finished:
            console.print(self.finished)
            return LoadedRun.read(self.before)
        check_machine(self.config)
        # The trainer's imports take longest; meanwhile the tasks are read and the agent is checked.
        start_trace.born("harness train")
        with preloaded_modules(self.config) as preloaded:
            with start_trace.span("tasks"):
                data = load_data(self.config, self.before)
            if self.before is None:
                with start_trace.span("certificate of the agent"):
                    certify([self.config.agent], console.print, leave=self.without_parity)
            # Create the folder after all checks, so that an invalid request leaves no empty run.
            folder = self.before or RunFolder.create(self.runs_dir, agent_label(self.config.agent))
            with folder.dropped_without_record(), during(folder), interruptible(), own_loop():
                self._fit(folder, data, preloaded, console, panel, on_progress)
        return LoadedRun.read(folder)

    def _fit(
        self,
        folder: RunFolder,
        data: Data,
        preloaded: Mapping[str, str],
        console: Console,
        panel: bool,
        on_progress: Callable[[Progress], None],
    ) -> None:
        config = self.config
        agent = (
            f"{agent_label(config.agent)} on {config.task.name}, {resolve_device(config.device)}"
        )
        took = measured_start_s(config)
        last = "" if took is None else f", which took {about(took)} last time"
        console.print(f"{folder.path}: {agent}; {config.train.trainer} is being started{last}")
        say_what_is_awaited(console, config, folder)
        title = f"{agent_label(config.agent)} · train {config.agent_match!r} · seed {config.seed}"
        from harness.training import launch  # takes a second

        view = TrainingDisplay(console, title, last, _advice(config), panel=panel)

        def show(progress: Progress) -> None:
            view.show(progress)
            on_progress(progress)

        try:
            with view:
                launch.train(
                    config,
                    folder,
                    data,
                    resume=self.before is not None,
                    preloaded=preloaded,
                    on_progress=show,
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_kept(config, folder)) from None
        except RunFailed as error:
            raise RunFailed(f"{error}\n{_kept(config, folder)}") from error
        finally:
            if view.start_s is not None:
                keep_start_s(config, view.start_s)


def say_what_is_awaited(console: Console, config: Config, folder: RunFolder) -> None:
    """Wait for a separate store, and show how runners join if none is started here.

    Raises:
        UserError: The store does not answer, or refuses.
    """
    if store := config.rollout.store:
        from harness.rollout.remote_store import remote_queue_type

        remote_queue_type().awaited(store, console.print)
    if config.rollout.runners == 0:
        where = f"--store {store}` or `harness runner " if store else ""
        console.print(
            f"rollout.runners is 0: waits for `harness runner {where}--join {folder.path}`"
        )


def _advice(config: Config) -> str:
    """Return advice for a training that learns nothing."""
    if config.policy.path == "pocket-sql" and config.task.name != "pocket":
        return (
            f", or another policy.path: "
            f"pocket-sql speaks only the task set pocket, not {config.task.name}"
        )
    return ""


def _kept(config: Config, folder: RunFolder) -> str:
    """Return what a training that ended early leaves, and how to resume it."""
    from harness.plugins import make_trainer

    if not (folder.path / "run.json").is_file():
        return "nothing was started yet, and nothing is kept"
    step = max(make_trainer(config).checkpoints(folder), default=0)
    state = (
        f"step {step} and all before it are kept. Go on"
        if step
        else "no checkpoint was saved yet (train.save_every). Start over"
    )
    return f"{state}: harness train --resume {folder.path}"


def _ci(*, fast: bool) -> list[Setting]:
    if fast:
        return [
            "train.steps=1",
            "train.batch_size=4",
            "task.val_limit=8",
            "train.val_every=0",
            "train.save_every=0",
        ]
    return ["train.steps=20", "train.val_every=10"]
