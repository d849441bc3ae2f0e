"""Parity: the proof that every framework runs the same agent.

`scenarios` generates random scenarios, `recorder` runs one agent through the real gateway and
records its behaviour, `comparison` compares the recordings with the reference, `certificate` is the
entry of a run record.
"""
