"""The task set `pocket_probe`: databases and questions, what can be reached on them, and training data."""
