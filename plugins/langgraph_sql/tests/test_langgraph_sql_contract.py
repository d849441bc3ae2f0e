from harness.testing.contract import AgentContract


class TestStrict(AgentContract):
    agent = "langgraph_sql"
