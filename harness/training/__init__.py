"""A run from start to end: checks, data, order, record, status and resumption."""
