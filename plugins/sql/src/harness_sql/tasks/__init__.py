"""Task sets with SQL gold queries."""
