"""The subprocess: the wheel's tools, with replacements for names of other packages.

Nothing here imports harness.
"""
