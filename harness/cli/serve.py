"""`harness serve`, and functions by which other commands serve a policy here."""

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
"""Default limit of prompt and answer together, in tokens, if the policy reads so many."""
LONGEST_KEY = 4096
"""Most characters of a key, because servers limit the headers of a request."""
LOOK_S = 5.0
"""Seconds between health checks of an idle server."""
ANSWER_S = 60.0
"""Seconds that the server may take to answer a health check before it counts as silent."""
CPU_BYTES_A_SECOND = 2_000_000
"""Bytes of weights that extend the deadline of a rollout on a CPU by one second.

On two busy cores Qwen2.5-Coder-0.5B (988 MB) took 128 s for a question of three turns, so this
deadline has a margin of four.
"""
DEADLINE = "rollout.timeout_s"


@app.command()
def serve(
    policy: Annotated[
        str,
        typer.Argument(
            help="A run (its newest checkpoint), a study (its best run), or a policy: a name from "
            "`harness policy list`, a folder, or an id on Hugging Face.",
            autocompletion=complete.runs,
        ),
    ],
    step: Annotated[
        int | None, typer.Option(help="Serve this checkpoint instead of the newest.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port on the loopback interface; 0 takes a free one."),
    ] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")
    ] = "auto",
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Limit of prompt and answer together, in tokens; by default 2048, or the run's.",
        ),
    ] = None,
    api_key_env: Annotated[
        str,
        typer.Option(
            help="Variable that holds the key that clients must send; if unset, a key is generated."
        ),
    ] = "HARNESS_SERVE_KEY",
    json_: complete.Json = False,
) -> None:
    """Serve a policy at an OpenAI-compatible endpoint of this machine, until Ctrl-C.

    It prints three environment variables for clients: your framework, `harness dev`, `curl`.
    """
    interruptible()
    here = to_serve(policy) or policy
    if isinstance(here, str) and step is not None:
        raise UserError(
            f"--step selects a checkpoint of a run, and {policy} is no run folder: leave it out"
        )
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
            # On one line, so that users can paste it before a command in a shell.
            assigned = [f"{variable}={value}" for variable, value in variables.items()]
            results().print("  " + " ".join(assigned), soft_wrap=True)
        try:
            _watch(url, key)
        except KeyboardInterrupt:
            progress_console().print("ended")


def to_serve(model: str | None, endpoint: str | None = None) -> RunFolder | str | None:
    """Return the run or policy to serve here for an option `--model`, or None for an endpoint.

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
    """Return the run with an id, or the best run of a study (name, folder or file), or None."""
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
                f"{folder}: serving the best of {best.of} finished trainings by validation "
                f"({percent(best.validation)}, biased by this choice), "
                f"{best.arm} seed {best.seed}: {best.folder.path}"
            )
            return best.folder
    return None


def _whole(folder: RunFolder) -> RunFolder:
    """Return the run after reading its record: without one, its checkpoint's origin is unknown."""
    folder.read()
    return folder


def preset_of(here: RunFolder | str | None, task: str | None) -> tuple[str | None, Path | None]:
    """Return preset and file of a command's configuration, of which one is None."""
    if isinstance(here, RunFolder):
        return None, here.path / "config.yaml"
    return ("endpoint" if here is None else default_preset(task, resolve_device("auto"))), None


def patient(
    config: Config, here: RunFolder | str | None, overrides: Sequence[str] | None
) -> Config:
    """Return the configuration with a deadline that a policy of this size can meet on a CPU.

    Args:
        here: What is served here, as returned by `to_serve`; the deadline for an endpoint is
            unchanged.
        overrides: The user's settings; a deadline in them takes precedence.
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
    # Time on a CPU grows with the weights, so the default deadline would end every rollout.
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
    # The summary tells which task a small policy was trained for.
    named = None if isinstance(here, RunFolder) else find(here)
    what = f" ({named.summary})" if named is not None else ""
    place = here.path if isinstance(here, RunFolder) else here
    progress_console().print(f"{place}{what} is being served on {device}")
    with serving(here, config, key=key) as (url, name):
        yield Endpoint(url, name, key, token_ids=True)


@contextmanager
def roles_answered(config: Config) -> Iterator[Mapping[str, Endpoint]]:
    """Yield the endpoints of `config.roles`, with policies served here within the block."""
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
    """Serve a policy within the block, and yield its URL and name."""
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
    # Other questions may be longer than those of the run.
    length = max_length or max(own, min(ROOM, longest(folder) or ROOM))
    device = resolve_device(config.device)
    engine = Engine(parser_of(config, folder, device), config.batch_invariant(device))
    with server(device)(
        folder, device, length, _log(), engine, port=port, name=name, key=key
    ) as url:
        yield url, name


def _log() -> Path:
    """Return the log of this process's policy server, which remains after the server has ended."""
    return Path(tempfile.gettempdir()) / f"harness-serve-{os.getpid()}.log"


def _watch(url: str, key: str) -> Never:
    """Check the server regularly. Leave a silent server running, because it may be busy.

    Raises:
        RunFailed: The server has ended.
    """
    answered = True
    while True:
        time.sleep(LOOK_S)
        state = _state(url, key)
        if state == "ended":
            raise RunFailed(f"the policy server at {url} has ended; its log says why: {_log()}")
        # Print only changes: a server under load may be silent for minutes.
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
