"""The roles of a team. Standard library only, so that anything may import it."""

PLANNER, CRITIC = "planner", "critic"
WORKERS = ("worker_a", "worker_b", "worker_c")
ROLES = (PLANNER, *WORKERS, CRITIC)
