"""Comparison of runs: whether they may be compared, what differs, how sure that is, and what it cost."""
