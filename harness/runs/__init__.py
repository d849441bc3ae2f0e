"""The run folder. This package defines everything that a run leaves on disk."""
