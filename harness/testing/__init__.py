"""Contract suites for plugins, one per kind of part, for test classes to inherit."""
