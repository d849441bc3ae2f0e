import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "crewai_sql"


class TestIdiomatic(AgentContract):
    agent = "crewai_sql_idiomatic"


@pytest.mark.slow
class TestTools(AgentContract):
    agent = "crewai_tools"


@pytest.mark.slow
class TestTeam(AgentContract):
    agent = "crewai_team"


class TestDialogue(AgentContract):
    agent = "crewai_dialogue"
