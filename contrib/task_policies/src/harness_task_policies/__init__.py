"""Small policies for single task sets; `catalogue.yaml` lists them."""

HARNESS_API = 1
