"""OpenAI's Responses API and Anthropic's Messages API, limited to what chat completions can express."""
