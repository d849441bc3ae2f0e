"""How the bundled task set and the seed policies are made; part of the repository, not of the wheel."""
