"""Rewards for queries and for answers in words about databases."""
