import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "smolagents_sql"


class TestIdiomatic(AgentContract):
    agent = "smolagents_sql_idiomatic"


class TestToolsIdiomatic(AgentContract):
    agent = "smolagents_tools_idiomatic"
