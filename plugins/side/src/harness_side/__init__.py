"""Processes beside ours, for what has an environment of its own or runs what others wrote."""

from harness_side.process import INHERITED, OURS, Pool, SideProcess

__all__ = ["INHERITED", "OURS", "Pool", "SideProcess"]
