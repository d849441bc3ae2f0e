"""Processes beside ours, for what has an environment of its own or runs what others wrote."""

from harness_side.process import INHERITED, OURS, Pool, SideProcess
from harness_side.session import Payload, SideEnvironment, SideSession

__all__ = ["INHERITED", "OURS", "Payload", "Pool", "SideEnvironment", "SideProcess", "SideSession"]
