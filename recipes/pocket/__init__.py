"""The task set `pocket`: designs of databases, templates of questions, and the generator."""
