"""An OpenAI-compatible model that says what a script has: what programs' scenarios, parity and tests play against."""
