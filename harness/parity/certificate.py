"""Certificates in run records: this agent, as it is installed, passed parity.

A certificate is valid only while everything that it covers is unchanged: prompts, scenarios, the
reference, the plugin's source, the versions of its frameworks and of all their dependencies, HTTP
clients first. `python -m harness.parity.certificate AGENT` prints the fingerprint of an agent as
another interpreter sees it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

import harness
from harness.contracts.hookspecs import AgentSpec
from harness.errors import EnvironmentProblem, PluginError, last_line
from harness.plugins import (
    agent_spec,
    framework_versions,
    program,
    program_of,
    registry,
)
from harness.plugins.sources import agent_hash, source_hash
from harness.rollout.environments import python_for
from harness.runs.certificates import certificate_of, certificate_path
from harness.runs.folder import now, replace_text
from harness.runs.schema import Certificate, Fingerprint
from harness.util.formatting import agent_label, members
from harness.util.parsing import digest

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from harness.parity.comparison import Deviation, Similarity

CLIENTS = (
    "openai",
    "httpx",
    "httpcore",
    "h11",
    "anyio",
    "aiohttp",
    "litellm",
    "requests",
    "urllib3",
    "anthropic",
)
"""Libraries that make or send requests; a fingerprint has the versions of those that an agent can
reach.
"""


def fingerprint(agent_name: str) -> Fingerprint:
    """Return everything that a certificate depends on, without importing a framework.

    Raises:
        PluginError: The agent does not exist.
    """
    spec = agent_spec(agent_name)
    if len(members(agent_name)) > 1:
        return _of_mixture(spec)
    python = python_for(registry().owner("agent", agent_name))
    if python == sys.executable:
        return _fingerprint(spec)
    command = [python, "-m", "harness.parity.certificate", agent_name]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=False
    )
    if done.returncode:
        reason = last_line(done.stderr, "no message")
        raise PluginError(
            f"the environment of agent {agent_name!r} is broken: {reason}. Sync it again"
        )
    of_other_interpreter: Fingerprint = json.loads(done.stdout)
    return of_other_interpreter


def certificate_for(agent_name: str, current: Fingerprint | None = None) -> Certificate | None:
    """Return the valid certificate of an agent, or None.

    None means that it was never tested, failed, or has changed.
    """
    certificate = certificate_of(agent_name, digest(current or fingerprint(agent_name)))
    if certificate is None or certificate["scenarios"] != _scenarios(agent_name):
        return None
    return certificate


def write_certificate(agent_name: str, result: Similarity | Deviation) -> Certificate | None:
    """Store the result of a comparison over all scenarios. A failure removes an older certificate.

    Returns:
        The certificate, or None if the agent failed.

    Raises:
        EnvironmentProblem: The folder of certificates cannot be written.
    """
    from harness.parity.comparison import Similarity

    current = fingerprint(agent_name)
    path = certificate_path(agent_name, digest(current))
    if isinstance(result, Similarity) and not result.passed:
        # The agent has not changed, so its earlier pass was by chance.
        if path.exists():
            with _writable(path.parent):
                path.unlink(missing_ok=True)
        return None
    certificate: Certificate = {
        "schema": 1,
        "agent": agent_label(agent_name),
        "strict": isinstance(result, Similarity),
        "hash": digest(current),
        "fingerprint": current,
        "scenarios": _scenarios(agent_name),
        "accepted": list(result.accepted) if isinstance(result, Similarity) else [],
        "deviation": None
        if isinstance(result, Similarity)
        else json.loads(json.dumps(asdict(result))),
        "made": now(),
    }
    with _writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(certificate, indent=2))
    return certificate


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Report a failure of the block to write to a folder in the cache."""
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write a parity certificate to {folder}: {error.strerror}. "
            "Set HARNESS_CACHE_DIR to a folder that can be written"
        ) from error


def _scenarios(agent_name: str) -> int:
    return len(program(program_of(agent_name)).scenarios)


def _of_mixture(spec: AgentSpec) -> Fingerprint:
    """Return one fingerprint of several agents, which changes with each of theirs."""
    names = members(spec.name)
    frameworks: dict[str, str] = {}
    clients: dict[str, str] = {}
    sources: dict[str, str] = {}
    requirements: dict[str, str] = {}
    each = list(map(fingerprint, names))
    for name, one in zip(names, each, strict=True):
        frameworks |= one["frameworks"]
        clients |= one["clients"]
        sources[agent_label(name)] = one["agent_source"]
        requirements[agent_label(name)] = one["requirements"]
    # Prompts, scenarios and reference belong to the program, which all agents share.
    return {
        **each[0],
        "agent": agent_label(spec.name),
        "strict": spec.strict,
        "agent_source": digest(sources),
        "frameworks": frameworks,
        "clients": clients,
        "requirements": digest(requirements),
    }


def _fingerprint(spec: AgentSpec) -> Fingerprint:
    of_agent = program(program_of(spec.name))
    below = _requirements(spec)
    return {
        "agent": agent_label(spec.name),
        "strict": spec.strict,
        "prompts": of_agent.prompts_hash,
        "scenarios": of_agent.scenarios_hash,
        "reference": source_hash(agent_spec(of_agent.reference).target.partition(":")[0]),
        "agent_source": agent_hash(spec),
        "frameworks": framework_versions(spec),
        "clients": {name: below[name] for name in CLIENTS if name in below},
        "requirements": digest(below),
    }


def _requirements(spec: AgentSpec) -> dict[str, str]:
    """Return the versions of all distributions through which an agent's code can send a request.

    They are the direct and indirect requirements of its plugin and its frameworks, and harness's
    own clients.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    owner = registry().owner("agent", spec.name)
    plugin = [state.distribution for state in registry().states if state.name == owner]
    packages = Path(sysconfig.get_path("purelib"))
    # Ray adds a folder below it to the path, with a psutil that no agent imports.
    folders = [folder for folder in sys.path if packages not in Path(folder).parents]
    unvisited = [*map(Requirement, ("openai", "httpx", "aiohttp", *spec.frameworks, *plugin))]
    seen: set[tuple[str, frozenset[str]]] = set()
    versions: dict[str, str] = {}
    while unvisited:
        requirement = unvisited.pop()
        # The same distribution with other extras has other requirements.
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name == harness.DISTRIBUTION or (name, extras) in seen:
            continue
        seen.add((name, extras))
        installed = next(iter(distributions(name=requirement.name, path=folders)), None)
        if installed is None:  # for another platform, or left out on purpose
            continue
        metadata = installed.metadata  # reads a file at each access
        versions[name] = metadata["Version"]
        for needed in map(Requirement, metadata.get_all("Requires-Dist", [])):
            if _asked_for(needed, extras):
                unvisited.append(needed)
    return versions


def _asked_for(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    if marker is None:
        return True
    # A marker that names an extra cannot be evaluated without one, so none is an empty name.
    return any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def main() -> None:
    """Print the fingerprint of one agent as JSON."""
    sys.stdout.write(json.dumps(_fingerprint(agent_spec(sys.argv[1]))) + "\n")


if __name__ == "__main__":
    main()
