"""Tools without a topic of their own, for all packages: time limits, formatting, bounded servers, traces."""
