"""`harness serve`, and what other commands need to have a policy answer here."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Never

import typer

from harness.api.parameters import default_preset, environment_endpoint
from harness.cli import complete
from harness.cli.common import emit_json, interruptible, progress_console, results
from harness.config import Config, load_config, resolve_device
from harness.config.sections import PolicyConfig
from harness.errors import RunFailed, UserError
from harness.runs.folder import RunFolder
from harness.util.formatting import answered_by

if TYPE_CHECKING:
    from harness.util.endpoints import Endpoint

app = typer.Typer(add_completion=False)

ROOM = 2048
"""Tokens of prompt and answer together, where the policy reads so many."""
LONGEST_KEY = 4096
"""The most characters of a key; headers of a request have a limit."""
LOOK_S = 5.0
"""Seconds between health checks of an idle server."""
ANSWER_S = 60.0
"""How long it may take to answer that before this says so."""
CPU_BYTES_A_SECOND = 2_000_000
"""Bytes of weights for which a rollout may take a second longer on a CPU.

On two busy cores a question of three turns took Qwen2.5-Coder-0.5B (988 MB) 128 s:
this leaves a margin of four.
"""
DEADLINE = "rollout.timeout_s"


@app.command()
def serve(
    policy: Annotated[
        str,
        typer.Argument(
            help="A run, whose newest checkpoint is served, or a study, whose best run is; or a policy: a name of "
            "`harness policy list`, a folder, an id on Hugging Face.",
            autocompletion=complete.runs,
        ),
    ],
    step: Annotated[int | None, typer.Option(help="A checkpoint other than the newest.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of this machine alone; by default a free one.")
    ] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")
    ] = "auto",
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2, help="Prompt and answer together, in tokens; by default 2048, or the run's."
        ),
    ] = None,
    api_key_env: Annotated[
        str,
        typer.Option(
            help="Variable that holds the key that callers have to say; unset: one is made."
        ),
    ] = "HARNESS_SERVE_KEY",
    json_: complete.Json = False,
) -> None:
    """Serve a policy at an OpenAI-compatible endpoint of this machine, until Ctrl-C.

    Any client of OpenAI's API takes the three variables that it prints: a framework of yours, `harness dev`, `curl`.
    """
    interruptible()
    here = to_serve(policy) or policy
    if isinstance(here, str) and step is not None:
        raise UserError(f"--step is of a run's checkpoints, and {policy} is no run folder")
    preset, file = ("endpoint", None) if isinstance(here, str) else preset_of(here, None)
    config = load_config(preset, file, [f"device={device}"])
    key = os.environ.get(api_key_env) or secrets.token_urlsafe(24)
    if not (key.isascii() and key.isprintable()) or " " in key or len(key) > LONGEST_KEY:
        raise UserError(
            f"{api_key_env}: a request's header cannot carry this key. Use at most "
            f"{LONGEST_KEY:,} letters, digits and punctuation of ASCII, without spaces"
        )
    with serving(here, config, step, port=port, max_length=max_length, key=key) as (url, name):
        variables = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "MODEL": name}
        if json_:
            emit_json(variables, indent=None)
        else:
            results().print(f"{policy} answers at {url} until Ctrl-C:")
            # One line without breaks, to be put before a command in a shell.
            assigned = [f"{variable}={value}" for variable, value in variables.items()]
            results().print("  " + " ".join(assigned), soft_wrap=True)
        try:
            _watch(url, key)
        except KeyboardInterrupt:
            progress_console().print("ended")


def to_serve(model: str | None, endpoint: str | None = None) -> RunFolder | str | None:
    """Return the run or policy to serve here for a command's model, or None for an endpoint.

    With an endpoint (by option or `OPENAI_BASE_URL`) the model is the endpoint's, except for run
    folders and named policies, which no endpoint serves under that name.
    """
    from harness.policies.catalogue import find

    if model is None or endpoint is not None:
        return None
    if (Path(model) / "run.json").is_file():
        return _whole(RunFolder.open(Path(model)))
    if find(model):
        return model
    if (named := _named_run(Path(model))) is not None:
        return named
    return model if environment_endpoint() is None else None


def _named_run(name: Path) -> RunFolder | None:
    """Return the run of an id, or the best run of a study (name, folder or file), or None."""
    from harness.compare.selection import best_run, located
    from harness.compare.states import STUDY_FILE
    from harness.util.formatting import percent

    runs_dir = Path("runs")
    if name.suffix in (".yaml", ".yml") and name.is_file():
        folders = [located(name, runs_dir)]
    else:
        folders = [name, runs_dir / name]
    for folder in folders:
        if (folder / "run.json").is_file():
            return _whole(RunFolder.open(folder))
        if (folder / STUDY_FILE).is_file():
            best = best_run(folder)
            progress_console().print(
                f"{folder}: of {best.of} finished trainings "
                f"{best.arm} seed {best.seed} validated best "
                f"({percent(best.validation)}, and was chosen by that): {best.folder.path}"
            )
            return best.folder
    return None


def _whole(folder: RunFolder) -> RunFolder:
    """Return a run with a readable record; a checkpoint without a record is of an unknown run."""
    folder.read()
    return folder


def preset_of(here: RunFolder | str | None, task: str | None) -> tuple[str | None, Path | None]:
    """Preset and file that a command's configuration is made of, by what answers."""
    if isinstance(here, RunFolder):
        return None, here.path / "config.yaml"
    return ("endpoint" if here is None else default_preset(task, resolve_device("auto"))), None


def patient(
    config: Config, here: RunFolder | str | None, overrides: Sequence[str] | None
) -> Config:
    """Return the configuration with a rollout's deadline that a policy of this size keeps on a CPU.

    Args:
        here: What answers here, as `to_serve` returns it; for an endpoint the deadline stays.
        overrides: The user's own settings; a deadline among them stays.
    """
    from harness.policies import fetched
    from harness.policies.export import checkpoint_model

    stated = [override.partition("=")[0].strip() for override in overrides or ()]
    if here is None or DEADLINE in stated or resolve_device(config.device) != "cpu":
        return config
    if isinstance(here, RunFolder):
        folder = checkpoint_model(here, None)
    else:
        folder = Path(fetched(PolicyConfig(path=here, revision=config.policy.revision)))
    # Time on a CPU grows with the weights: the usual deadline would end every rollout.
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    deadline_s = max(config.rollout.timeout_s, float(weights // CPU_BYTES_A_SECOND))
    rollout = config.rollout.model_copy(update={"timeout_s": deadline_s})
    return config.model_copy(update={"rollout": rollout})


@contextmanager
def answered(
    here: RunFolder | str | tuple[str, str, str | None], config: Config
) -> Iterator[Endpoint]:
    """Yield an endpoint (URL, model and key), or a policy served here within the block."""
    from harness.policies.catalogue import find
    from harness.util.endpoints import Endpoint

    if isinstance(here, tuple):
        yield Endpoint(*here)
        return
    interruptible()
    key = secrets.token_urlsafe(24)
    device = resolve_device(config.device)
    # The summary names what a policy was made for; it may know nothing else.
    named = None if isinstance(here, RunFolder) else find(here)
    what = f" ({named.summary})" if named is not None else ""
    place = here.path if isinstance(here, RunFolder) else here
    progress_console().print(f"{place}{what} is being served on {device}")
    with serving(here, config, key=key) as (url, name):
        yield Endpoint(url, name, key, token_ids=True)


@contextmanager
def roles_answered(config: Config) -> Iterator[Mapping[str, Endpoint]]:
    """Yield what answers `config.roles`: endpoints, and policies served here within the block."""
    from harness.policies.roles import answerers, answering

    answers = answerers(config)
    if answers:
        interruptible()
        names = {role: answerer.name for role, answerer in answers.items()}
        progress_console().print(answered_by(names))
    with answering(answers, config, _log().with_suffix("")) as roles:
        yield roles


@contextmanager
def serving(
    here: RunFolder | str,
    config: Config,
    step: int | None = None,
    *,
    port: int = 0,
    max_length: int | None = None,
    key: str,
) -> Iterator[tuple[str, str]]:
    """URL and name of a policy that answers as long as this lasts."""
    from harness.policies import fetched, longest, parser_of
    from harness.policies.demonstrations import refuse_demonstrations
    from harness.policies.export import checkpoint_dir, checkpoint_model
    from harness.policies.servers import Engine, server
    from harness.training.checks import check_device

    check_device(config)
    if isinstance(here, RunFolder):
        name = f"{here.id}/{checkpoint_dir(here, step)[0]}"
        folder = str(checkpoint_model(here, step))
    else:
        name, folder = here, fetched(PolicyConfig(path=here, revision=config.policy.revision))
    refuse_demonstrations(
        folder, "this endpoint serves a model without them", "Measure the policy: `harness eval`"
    )
    own = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    # Questions of one's own may be longer.
    length = max_length or max(own, min(ROOM, longest(folder) or ROOM))
    device = resolve_device(config.device)
    engine = Engine(parser_of(config, folder, device), config.batch_invariant(device))
    with server(device)(
        folder, device, length, _log(), engine, port=port, name=name, key=key
    ) as url:
        yield url, name


def _log() -> Path:
    """Of this process's policy server; it outlives the server, so that it can be read."""
    return Path(tempfile.gettempdir()) / f"harness-serve-{os.getpid()}.log"


def _watch(url: str, key: str) -> Never:
    """Look at the server now and then. One that does not answer is left alone: it may be at work.

    Raises:
        RunFailed: It has ended.
    """
    answered = True
    while True:
        time.sleep(LOOK_S)
        state = _state(url, key)
        if state == "ended":
            raise RunFailed(f"the policy server at {url} has ended (log: {_log()})")
        # Changes alone are printed: a server under load may be silent for minutes.
        if answered != (state == "answers"):
            answered = not answered
            what = "answers again" if answered else f"does not answer (log: {_log()})"
            progress_console().print(f"the policy server at {url} {what}")


def _state(url: str, key: str) -> Literal["answers", "silent", "ended"]:
    """Return whether the server answers, is silent though its port is open, or has ended."""
    request = urllib.request.Request(f"{url}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return "answers" if json.load(answer)["data"] else "silent"
    except (OSError, ValueError, KeyError) as error:
        # urllib wraps the socket's error; only a refused connection means a closed port.
        cause = getattr(error, "reason", error)
        return "ended" if isinstance(cause, ConnectionRefusedError) else "silent"
