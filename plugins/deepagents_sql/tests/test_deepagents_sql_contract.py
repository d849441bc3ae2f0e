import pytest

from harness.testing.contract import AgentContract

pytestmark = pytest.mark.timeout(600)  # a long file, which is to begin among the first


class TestIdiomatic(AgentContract):
    agent = "deepagents_sql_idiomatic"


class TestToolsIdiomatic(AgentContract):
    agent = "deepagents_tools_idiomatic"

    @pytest.mark.xfail(reason="a deep agent always sends tools of its own", strict=True)
    def test_leaves_tools_out_where_there_are_none(self, loaded, gateway, tmp_path):
        super().test_leaves_tools_out_where_there_are_none(loaded, gateway, tmp_path)
