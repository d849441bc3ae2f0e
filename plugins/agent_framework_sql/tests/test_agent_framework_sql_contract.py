from harness.testing.contract import AgentContract


class TestStrict(AgentContract):
    agent = "agent_framework_sql"


class TestTools(AgentContract):
    agent = "agent_framework_tools"


class TestToolsIdiomatic(AgentContract):
    agent = "agent_framework_tools_idiomatic"


class TestTeam(AgentContract):
    agent = "agent_framework_team"


class TestTeamIdiomatic(AgentContract):
    agent = "agent_framework_team_idiomatic"


class TestDialogue(AgentContract):
    agent = "agent_framework_dialogue"
