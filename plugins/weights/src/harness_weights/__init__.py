"""What works on a policy's weights: serves them, converts GGUF files, proves exported checkpoints."""
