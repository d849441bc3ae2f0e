"""The task set `medical`, and transcripts from which a tool-calling policy for it is trained."""
