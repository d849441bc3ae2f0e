"""SQLite databases: the environment, its sandbox, and how results of queries are compared."""
