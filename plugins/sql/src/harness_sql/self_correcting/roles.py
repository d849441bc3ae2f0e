"""The roles of the program, importable without its prompts."""

ROLES = ("write_query", "check_query", "rewrite_query")
