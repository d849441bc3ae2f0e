"""The seed policy `spider-sql`: a larger writer, checker and rewriter for Spider, made on a GPU by one command."""
