"""What the interpreter of the other environment runs: it has `verifiers` and nothing of harness."""
