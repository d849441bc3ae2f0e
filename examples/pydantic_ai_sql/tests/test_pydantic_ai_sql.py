from harness import AgentContract


class TestContract(AgentContract):
    agent = "pydantic_ai_sql"
