"""Conversations of teams, and of single agents, from which a policy for `pocket_split` is trained."""
