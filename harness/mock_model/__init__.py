"""An OpenAI-compatible model with scripted replies, for scenarios, parity and tests."""
