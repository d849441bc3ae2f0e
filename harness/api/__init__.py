"""The commands `train`, `eval` and `runs` as functions of `harness`, for Python and notebooks.

The commands call them as well; parts that need a terminal are in `harness.cli`.
"""
