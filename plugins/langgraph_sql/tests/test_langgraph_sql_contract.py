import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "langgraph_sql"


class TestIdiomatic(AgentContract):
    agent = "langgraph_sql_idiomatic"


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
