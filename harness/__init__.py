__version__ = "0.1.0"
DISTRIBUTION = "agent-rl-harness"
