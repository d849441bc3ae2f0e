"""The roles of a team and its number of passes.

Uses the standard library only, for cheap imports.
"""

PLANNER, CRITIC = "planner", "critic"
WORKERS = ("worker_a", "worker_b", "worker_c")
ROLES = (PLANNER, *WORKERS, CRITIC)
PASSES = 2
"""Most answers of the planner; the last one is not checked, because no further answer follows."""
