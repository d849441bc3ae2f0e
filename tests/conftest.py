"""Fixtures of the whole suite."""

pytest_plugins = ["harness.testing.fixtures"]
