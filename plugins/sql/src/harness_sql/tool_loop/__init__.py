"""Call the environment's tools until the answer is given in words: prompts, reference agent and scenarios."""
