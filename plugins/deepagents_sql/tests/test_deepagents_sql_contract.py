import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestIdiomatic(AgentContract):
    agent = "deepagents_sql_idiomatic"


class TestToolsIdiomatic(AgentContract):
    agent = "deepagents_tools_idiomatic"
