"""Work on a policy's weights: serve them, convert GGUF files, verify exported checkpoints."""
