import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestStrict(AgentContract):
    agent = "pydantic_ai_sql"


class TestIdiomatic(AgentContract):
    agent = "pydantic_ai_sql_idiomatic"


class TestTools(AgentContract):
    agent = "pydantic_ai_tools"


class TestToolsIdiomatic(AgentContract):
    agent = "pydantic_ai_tools_idiomatic"
