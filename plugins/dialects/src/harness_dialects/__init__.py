"""OpenAI's Responses API and Anthropic's Messages API, exactly as far as chat completions can say the same."""
