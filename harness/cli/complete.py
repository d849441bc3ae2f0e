"""Complete words in a shell, and correct mistyped commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


def agents(incomplete: str) -> list[str]:
    """Agents of installed plugins."""
    return _begin(_names("agent"), incomplete)


def plugins(incomplete: str) -> list[str]:
    """Installed plugins, those that failed to load too."""
    from harness.plugins import registry

    return _begin([state.name for state in registry().states], incomplete)


def task_sets(incomplete: str) -> list[str]:
    """Task sets of installed plugins."""
    return _begin(_names("task set"), incomplete)


def policies(incomplete: str) -> list[str]:
    """Policies that have a name, bundled and fetched."""
    from harness.policies.catalogue import by_name

    return _begin(by_name(), incomplete)


def presets(incomplete: str) -> list[str]:
    """Presets of this installation."""
    from harness.config import presets

    return _begin(presets(), incomplete)


def runs(incomplete: str) -> list[str]:
    """Complete runs and studies with runs below `runs/`; without any, the shell adds files."""
    folders: set[str] = set()
    # Runs of a study are one level deeper.
    for pattern in ("*/run.json", "*/*/run.json", "*/study.json"):
        for path in Path("runs").glob(pattern):
            folders.add(str(path.parent))
    return _begin(sorted(folders), incomplete)


def settings(incomplete: str) -> list[str]:
    """Complete settings: `KEY=VALUE` if a key has fixed values, otherwise `KEY=`.

    They include the options of every installed trainer.
    """
    from harness.config import Config, TrainConfig
    from harness.config.configuration import defaults
    from harness.config.trainer_sections import section_of
    from harness.errors import PluginError

    kinds = {
        "train.trainer": "trainer",
        "task.name": "task set",
        "reward.name": "reward",
        "reward.training": "reward",
        "agent": "agent",
    }
    values = defaults()
    sections: dict[str, type[TrainConfig]] = {}
    for trainer in _names("trainer"):
        try:
            section = section_of(trainer)
        except PluginError:  # one broken trainer must not hide the others' options
            continue
        for option in section.model_fields:
            sections.setdefault(f"train.{option}", section)
            values.setdefault(f"train.{option}", None)
    words = []
    for key, value in values.items():
        if key in kinds:
            names = _names(kinds[key])
        elif key in sections:
            names = _choices(sections[key], key.removeprefix("train."))
        else:
            names = _choices(Config, key)
        if names:
            words += [f"{key}={name}" for name in names]
        else:
            # A section that is empty by default takes any keys.
            words.append(f"{key}{'.' if value == {} else '='}")
    return _begin(words, incomplete)


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Return the completion of an option with these values."""

    def complete(incomplete: str) -> list[str]:
        return _begin(values, incomplete)

    return complete


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value, dotted; repeatable.", autocompletion=settings),
]
"""The option `--set` of commands that take a whole configuration."""
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        # Declared as a second name, it would not fit into help of 80 columns.
        help="URL of a store that `harness store` started; also --external-store-address.",
    ),
]
Preset = Annotated[
    str | None, typer.Option(help="A preset of `harness config list`.", autocompletion=presets)
]
Agents = Annotated[
    str | None,
    typer.Option(
        help="Several agents, separated by commas, to measure and compare.",
        autocompletion=agents,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Endpoint = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible URL, ending in /v1; by default OPENAI_BASE_URL."),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="The model at the endpoint, by default the first that it lists. Without an endpoint: a policy, "
        "a run, or a study (its best run) to serve here."
    ),
]
KeyVariable = Annotated[str, typer.Option(help="Variable that holds the endpoint's key.")]
WithoutParity = Annotated[
    bool,
    typer.Option(
        "--without-parity",
        help="Start at once, also with agents that have no parity certificate; none is made. "
        "Variable: HARNESS_WITHOUT_PARITY=1.",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="Total number of training steps; a resumed run counts its earlier steps, too."
    ),
]
Measured = Annotated[
    int | None, typer.Option("--step", help="Measure this checkpoint instead of the newest.")
]
Limit = Annotated[
    int | None, typer.Option(help="Measure at most this many tasks, always the same sample.")
]
ReadReserved = Annotated[
    bool,
    typer.Option(
        "--read-reserved",
        help="Permit --split to name a reserved split, which is meant to be measured once, after all "
        "decisions. Each such measurement is recorded in the folder of the runs.",
    ),
]
NewIn = Annotated[Path, typer.Option(help="The folder in which the run gets its own folder.")]
PriceIn = Annotated[
    float | None,
    typer.Option(
        "--price-in",
        min=0,
        envvar="HARNESS_PRICE_IN",
        show_envvar=False,
        help="Price of a million prompt tokens, in any currency.",
    ),
]
PriceOut = Annotated[
    float | None,
    typer.Option(
        "--price-out",
        min=0,
        envvar="HARNESS_PRICE_OUT",
        show_envvar=False,
        help="Price of a million response tokens.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(help="The arm that the others are compared with, by its name or its agent."),
]
References = Annotated[
    bool | None,
    typer.Option(
        "--references/--no-references",
        help="Show figures that others published; by default if there are any for the task set.",
    ),
]


def agent(text: str) -> Any:
    """Return the option `--agent` with this help text."""
    return typer.Option("--agent", "--plugin", help=text, autocompletion=agents)


def task(text: str) -> Any:
    """Return the option `--task` with this help text."""
    return typer.Option(help=text, autocompletion=task_sets)


def right_form(arguments: Sequence[str]) -> str:
    """Return the correct form of a mistyped command; empty if unknown."""
    command, word, *rest = [*arguments, "", ""]
    if word in ("list", "ls"):
        if command in ("plugins", "tasks"):
            return shlex.join(["harness", command, *filter(None, rest)])
        if command in ("runs", "config") and word == "ls":
            return shlex.join(["harness", command, "list", *filter(None, rest)])
    # Train, eval and dev have the agent as an option.
    if command in ("match", "parity") and word in ("--agent", "--plugin"):
        return shlex.join(["harness", command, *filter(None, rest)])
    # A study has no --resume: starting it again resumes it.
    if command == "study" and "--resume" in arguments:
        words = [argument for argument in arguments if argument != "--resume"]
        return shlex.join(["harness", *words])
    if command == "match" and not rest[0].startswith("-") and word in agents(word):
        return shlex.join(["harness", command, word, "--agent-match", *filter(None, rest)])
    # A name without its option: assume the first option that takes it.
    options = {
        "train": ("agent", "preset", "task"),
        "eval": ("agent", "preset", "task"),
        "dev": ("agent", "task"),
        "tasks": ("name",),
    }
    completions = {"agent": agents, "preset": presets, "task": task_sets, "name": task_sets}
    for option in options.get(command, ()):
        if word in completions[option](word):
            return shlex.join(["harness", command, f"--{option}", word, *filter(None, rest)])
    return ""


def _names(kind: str) -> list[str]:
    from harness.plugins import registry

    return [spec.name for spec in registry().specs(kind)]


def _choices(section: type[BaseModel], key: str) -> list[str]:
    """Return the fixed values of a setting; empty if it takes others."""
    first, _, rest = key.partition(".")
    annotation: Any = section.model_fields[first].annotation
    if rest:
        return _choices(annotation, rest) if hasattr(annotation, "model_fields") else []
    return [value for value in get_args(annotation) if isinstance(value, str)]


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
