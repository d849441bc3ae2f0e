"""Code for the interpreter of the other environment, which has `verifiers` and nothing of harness."""
