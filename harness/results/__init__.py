"""The run folder: the one place that knows what a run leaves on disk."""
