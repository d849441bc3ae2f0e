from harness.testing.contract import AgentContract


class TestStrict(AgentContract):
    agent = "langgraph_sql"


class TestTools(AgentContract):
    agent = "langgraph_tools"


class TestToolsIdiomatic(AgentContract):
    agent = "langgraph_tools_idiomatic"


class TestTeam(AgentContract):
    agent = "langgraph_team"


class TestTeamIdiomatic(AgentContract):
    agent = "langgraph_team_idiomatic"


class TestDialogue(AgentContract):
    agent = "langgraph_dialogue"
