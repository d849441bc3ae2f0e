"""Changes to libraries underneath, one file each: what is changed, why, and in which version."""
