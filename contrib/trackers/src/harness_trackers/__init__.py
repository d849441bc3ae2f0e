"""Export of runs to trackers: curves, configuration, final figures, a sample of episodes."""
