"""A run from its start to its end: what is refused before, what it is of, order, record, status, resumption."""
