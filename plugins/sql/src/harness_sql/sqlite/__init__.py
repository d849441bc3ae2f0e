"""SQLite databases: the environment, its sandbox and the comparison of query results."""
