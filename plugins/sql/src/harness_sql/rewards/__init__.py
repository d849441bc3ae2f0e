"""Rewards of queries, and of answers in words about databases."""
