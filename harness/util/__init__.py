"""General tools of all packages: time limits, formatting, bounded servers, traces."""
