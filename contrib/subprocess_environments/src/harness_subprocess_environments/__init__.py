"""Subprocesses, for code with an environment of its own or from untrusted sources."""

from harness_subprocess_environments.process import INHERITED, OURS, Pool, SideProcess
from harness_subprocess_environments.session import Payload, SideEnvironment, SideSession

__all__ = ["INHERITED", "OURS", "Payload", "Pool", "SideEnvironment", "SideProcess", "SideSession"]
