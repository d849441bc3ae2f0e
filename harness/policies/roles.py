"""Models that answer roles instead of the policy: endpoints, or policies served during a run."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.config import Config, key_in, resolve_device
from harness.config.sections import PolicyConfig, RoleConfig
from harness.errors import ConfigError, UserError, nearest
from harness.plugins import program_of, roles_of, trained_by
from harness.policies import fetched, longest
from harness.policies.demonstrations import refuse_demonstrations
from harness.policies.export import checkpoint_dir, checkpoint_model
from harness.policies.servers import server
from harness.runs.folder import RunFolder
from harness.util.endpoints import Endpoint, checked_url


@dataclass(frozen=True, slots=True)
class Answerer:
    """The model that answers a role.

    Attributes:
        name: Its description for messages.
        endpoint: Its endpoint; None for a policy to serve.
        folder: Folder of a policy to serve.
    """

    name: str
    endpoint: Endpoint | None = None
    folder: str = ""


def check(config: Config, trained: Collection[str] = ()) -> None:
    """Refuse invalid settings in `roles` before anything is started.

    Args:
        trained: Roles with trained calls.

    Raises:
        ConfigError: The program has no such role, its calls are trained, its endpoint is no URL or
            its key is missing, or a policy would have to be served on a GPU.
    """
    known, device = roles_of(config.agent), resolve_device(config.device)
    for name, role in config.roles.items():
        if name not in known:
            raise ConfigError(
                f"roles.{name}: {program_of(config.agent)} "
                f"has no role of that name{nearest(name, known, '.')} "
                f"Roles: {', '.join(known)}"
            )
        if name in trained:
            raise ConfigError(
                f"roles.{name}: agent_match {trained_by(config.agent, config.agent_match)!r} "
                "trains this role, and its "
                f"tokens would be another model's. "
                f"Take an agent_match that does not find it, or leave roles.{name} out"
            )
        if role.endpoint is not None:
            _endpoint(name, role)
        elif device != "cpu":
            raise ConfigError(
                f"roles.{name}.policy: on {device} the run's own policy has the device to itself. "
                f"Serve {role.policy} "
                f"elsewhere (`harness serve`), and name roles.{name}.endpoint and model instead"
            )


def answerers(config: Config, began_with: Mapping[str, str] | None = None) -> dict[str, Answerer]:
    """Return the model for each role of `roles`, after downloading policies from Hugging Face.

    Args:
        began_with: Policies of a resumed run by role, to use the same revisions.

    Raises:
        ConfigError: As in `check`; a policy is missing, damaged, or supports too few tokens.
        UserError: A run has no such checkpoint.
        EnvironmentProblem: huggingface.co does not answer.
    """
    answers = {}
    for name, role in config.roles.items():
        if role.endpoint is not None:
            endpoint = _endpoint(name, role)
            answers[name] = Answerer(endpoint.label, endpoint)
            continue
        try:
            answers[name] = _policy(role, (began_with or {}).get(name, ""))
        except UserError as error:
            raise type(error)(
                f"roles.{name}: {str(error).removeprefix('policy.path: ')}"
            ) from error
        room = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
        if room > (most := longest(answers[name].folder) or room):
            raise ConfigError(
                f"roles.{name}: {role.policy} reads and writes {most} tokens together, and "
                f"sampling.max_prompt_tokens + max_response_tokens are {room}"
            )
    return answers


@contextmanager
def answering(
    found: Mapping[str, Answerer], config: Config, logs: Path
) -> Iterator[dict[str, Endpoint]]:
    """Serve policies that answer roles and yield each role's endpoint; main thread only.

    Each policy has a process of its own on the processors, which ends with the block, and with this
    process.

    Raises:
        RunFailed: A policy's server ended before it was ready.
    """
    room = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    made: dict[str, Endpoint] = {}
    with ExitStack() as stack:
        endpoints = {}
        for name, one in found.items():
            # Roles with the same policy share its process.
            if one.endpoint is None and one.folder not in made:
                key = secrets.token_urlsafe(24)
                url = stack.enter_context(
                    server("cpu")(one.folder, "cpu", room, logs / f"policy-{name}.log", key=key)
                )
                made[one.folder] = Endpoint(url, one.folder, key, token_ids=True)
            endpoints[name] = one.endpoint or made[one.folder]
        yield endpoints


def _endpoint(name: str, role: RoleConfig) -> Endpoint:
    try:
        url = checked_url(str(role.endpoint))
    except ConfigError as error:
        raise ConfigError(f"roles.{name}.{error}") from error
    if (parts := urlsplit(url)).username or parts.password:
        raise ConfigError(
            f"roles.{name}.endpoint holds a user or password, "
            "which a record would show. Put the key into an "
            f"environment variable and its name into roles.{name}.api_key_env"
        )
    key = key_in(role.api_key_env, f"roles.{name}.api_key_env")
    return Endpoint(url, str(role.model), key or None, role.token_ids)


def _policy(role: RoleConfig, began_with: str) -> Answerer:
    policy = str(role.policy)
    if (Path(policy).expanduser() / "run.json").is_file():
        run = RunFolder.open(Path(policy).expanduser())
        step, _ = checkpoint_dir(run, role.step)
        return _bare(Answerer(f"{run.id}, step {step}", folder=str(checkpoint_model(run, step))))
    if role.step is not None:
        raise ConfigError(f"step is of a run's checkpoints, and {policy} is no run folder")
    name, _, commit = began_with.partition("@")
    revision = commit if commit and name == policy else role.revision
    return _bare(Answerer(policy, folder=fetched(PolicyConfig(path=policy, revision=revision))))


def _bare(answerer: Answerer) -> Answerer:
    """Return a policy that answers a role; its model alone is served."""
    refuse_demonstrations(answerer.folder, "policy", "Name a policy without demonstrations")
    return answerer
