"""A small shop's desk: customers who want something of their orders, rules, and tools that change them."""
