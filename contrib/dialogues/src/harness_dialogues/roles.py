"""The roles of the program, importable without its prompts."""

USER, AGENT = ROLES = ("user", "agent")
