"""Contract suites for plugins: one for each kind of part, to be inherited by a test class of theirs."""
