"""Write a query, execute it, check it, rewrite it: prompts, reference agent and scenarios."""
