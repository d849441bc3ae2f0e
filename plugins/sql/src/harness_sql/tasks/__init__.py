"""Task sets whose gold is SQL."""
