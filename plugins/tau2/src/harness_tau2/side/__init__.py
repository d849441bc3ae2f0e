"""The side process: the wheel's tools, with replacements for the few names of other packages that they import.

Nothing here imports harness.
"""
