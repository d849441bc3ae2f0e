"""Commands for SQL."""
