"""The contracts that plugins implement: environments, programs, agents, task sets, rewards, trainers."""
