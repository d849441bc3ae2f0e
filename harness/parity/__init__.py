"""Parity: the proof that every framework runs the same agent.

`scenarios` is what the model says, `recorder` runs one agent through the real gateway and notes what it
did, `comparison` compares that with the reference, `certificate` is what a run record carries.
"""
