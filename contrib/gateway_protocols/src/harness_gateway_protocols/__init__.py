"""OpenAI's Responses API and Anthropic's Messages API, as far as chat completions express them."""
