"""What runs in the side process: the wheel's tools, with stand-ins for the packages that they import names from.

Nothing here imports harness.
"""
