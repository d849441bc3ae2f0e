"""Runs in other people's trackers: curves, configuration, final figures, a sample of episodes."""
