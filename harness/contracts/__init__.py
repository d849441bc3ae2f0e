"""Contracts of plugins: environments, programs, agents, task sets, rewards and trainers."""
