"""The roles of a team, and how often it may answer. Standard library only, so that anything may import it."""

PLANNER, CRITIC = "planner", "critic"
WORKERS = ("worker_a", "worker_b", "worker_c")
ROLES = (PLANNER, *WORKERS, CRITIC)
PASSES = 2
"""Answers of the planner; the last one is not checked, since nothing could follow."""
