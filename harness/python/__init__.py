"""What the commands `train`, `eval` and `runs` do, as functions: of `harness`, for Python and notebooks.

The commands call them, too; what only a terminal has stays in `harness.cli`.
"""
