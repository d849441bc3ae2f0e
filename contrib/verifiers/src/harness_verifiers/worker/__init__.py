"""Code for an interpreter with `verifiers` and without harness."""
