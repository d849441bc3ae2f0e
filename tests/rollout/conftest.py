"""What an evaluation comes to whose sides nothing disturbs."""

from __future__ import annotations

from typing import Any

import pytest

from harness.testing.fixtures import StartServer
from sides import TASKS, Sides, seeded


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, scripted_server_factory: StartServer
) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Rows of an evaluation in the usual way: its store and its runner are its own."""
    sides = Sides(
        tmp_path_factory.mktemp("undisturbed"),
        scripted_server_factory(seeded, token_ids=False).base_url,
    )
    assert sides.evaluation(runners=1, apart=False).wait(300) == 0, sides.output("eval")
    rows = sides.rows()
    sides.end()
    assert len(rows) == TASKS and {reward for _, reward, *_ in rows.values()} == {0.0, 1.0}
    return rows
