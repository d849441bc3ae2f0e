import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "openai_agents_sql"


class TestIdiomatic(AgentContract):
    agent = "openai_agents_sql_idiomatic"


class TestTools(AgentContract):
    agent = "openai_agents_tools"


class TestToolsIdiomatic(AgentContract):
    agent = "openai_agents_tools_idiomatic"


class TestTeam(AgentContract):
    agent = "openai_agents_team"


class TestTeamIdiomatic(AgentContract):
    agent = "openai_agents_team_idiomatic"


class TestDialogue(AgentContract):
    agent = "openai_agents_dialogue"
