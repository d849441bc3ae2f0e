"""verl's own configuration: composed with settings, and used to check a user's options."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from harness.config import Config
from harness.errors import ConfigError, EnvironmentProblem, how_to_install
from harness.util.parsing import flatten, nested

Section: TypeAlias = dict[str, Any]
"""A section of verl's configuration: its values, and sections in it."""
FREE = (("ray_kwargs", "ray_init"),)
"""Sections that accept unknown options: verl passes them to `ray.init`. So do empty mappings."""


def compose(settings: Mapping[str, object]) -> Any:
    """Return verl's full configuration with `settings` over its defaults, a `DictConfig`.

    Raises:
        EnvironmentProblem: verl is not installed.
        ConfigError: verl refuses a value.
    """
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        raise EnvironmentProblem(
            f"training needs verl: {how_to_install('cpu')} ({error})"
        ) from error
    verl = importlib.util.find_spec("verl")  # its import takes seconds, its defaults are files
    if verl is None or verl.origin is None:
        raise EnvironmentProblem(f"training needs verl: {how_to_install('cpu')}")
    with initialize_config_dir(
        str(Path(verl.origin).parent / "trainer" / "config"), version_base=None
    ):
        base = hydra_compose("ppo_trainer")
    OmegaConf.set_struct(base, False)
    try:
        merged = OmegaConf.merge(base, OmegaConf.create(dict(settings)))
        OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"verl's configuration refuses a value: {str(error).splitlines()[0]}"
        ) from error
    return merged


def chosen(config: Config) -> Section:
    """Return the user's own options of verl, nested, each known to verl or added with a `+`.

    Raises:
        ConfigError: verl has no such option and would train without it.
    """
    every: dict[str, Any] = {}
    to_look_up: dict[str, Any] = {}
    for key, value in config.verl.items():
        every[key.removeprefix("+")] = value
        # A `+` adds an option on purpose, so verl need not know it.
        if not key.startswith("+"):
            to_look_up[key] = value
    # verl's own configuration takes long to compose, so it is made only if something needs it.
    if to_look_up:
        base = _base()
        _look_up(nested(to_look_up), base, base, ())
    return nested(every)


def _look_up(
    chosen: Mapping[str, Any],
    known: Mapping[str, Any],
    base: Mapping[str, Any],
    where: tuple[str, ...],
) -> None:
    if where in FREE or (where and not known):
        return
    for key, value in chosen.items():
        path = (*where, key)
        if key not in known:
            raise ConfigError(_unknown(path, known, base))
        if isinstance(value, Mapping) and isinstance(known[key], Mapping):
            _look_up(value, known[key], base, path)


def _unknown(path: tuple[str, ...], known: Mapping[str, object], base: Mapping[str, object]) -> str:
    name = ".".join(path)
    near = get_close_matches(path[-1], known, 1)
    names = [f"{'.'.join(path[:-1])}.{near[0]}".lstrip(".")] if near else []
    if not near:
        # The right name in a wrong place, or nearly: the last parts of all options are compared.
        first_by_ending: dict[str, str] = {}
        for option in flatten(base):
            first_by_ending.setdefault(option.rpartition(".")[2], option)
        for ending in get_close_matches(path[-1], first_by_ending, 1):
            names = [first_by_ending[ending]]
    hint = f"; did you mean {'verl.' + names[0]!r}?" if names else "."
    return f"verl has no option {name!r}{hint} `--set +verl.{name}=VALUE` adds one on purpose"


@cache
def _base() -> Section:
    """Return verl's own configuration as plain data."""
    from omegaconf import OmegaConf

    base: Any = OmegaConf.to_container(compose({}), resolve=False)
    return dict(base)
