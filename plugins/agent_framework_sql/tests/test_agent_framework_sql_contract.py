import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "agent_framework_sql"


class TestIdiomatic(AgentContract):
    agent = "agent_framework_sql_idiomatic"


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
