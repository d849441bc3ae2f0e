"""Worked puzzles of reasoning_gym, from which a policy for two of its data sets is trained."""
