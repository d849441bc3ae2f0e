"""Studies: a matrix of trainings that share everything but what is varied on purpose."""
