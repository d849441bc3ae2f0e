import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "autogen_sql"


class TestIdiomatic(AgentContract):
    agent = "autogen_sql_idiomatic"


class TestTools(AgentContract):
    agent = "autogen_tools"


class TestToolsIdiomatic(AgentContract):
    agent = "autogen_tools_idiomatic"


class TestTeam(AgentContract):
    agent = "autogen_team"


class TestTeamIdiomatic(AgentContract):
    agent = "autogen_team_idiomatic"


class TestDialogue(AgentContract):
    agent = "autogen_dialogue"
