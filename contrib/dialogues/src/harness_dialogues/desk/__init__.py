"""A small shop's order desk: customers with requests about their orders, rules, and tools."""
