"""Prompts, reference agent and scenarios of agents that call tools until they answer in words."""
