"""The seed policy `pocket-sql`: a tiny SQL writer, checker and rewriter with known bad habits."""
