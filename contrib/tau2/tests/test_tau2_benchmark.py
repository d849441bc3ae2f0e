"""tau2-bench's own domains keep the contracts, where they were fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness import EnvironmentContract, Task, TaskSetContract
from harness_tau2.cli import lines
from harness_tau2.data import Manifest, read
from harness_tau2.process import Subprocess
from harness_tau2.tasks import SPLITS, Tau2Tasks

Called = tuple[str, Mapping[str, Any]]
GoldOf = Callable[[Task], list[Called]]
SPARE: dict[str, Mapping[str, Any]] = {
    "list_all_product_types": {},
    "list_all_airports": {},
    "get_flight_status": {"flight_number": "HAT271", "date": "2024-05-26"},
    "search_onestop_flight": {"origin": "JFK", "destination": "SEA", "date": "2024-05-20"},
}
"""Calls of tools that no gold calls."""


def calls_of(
    folder: Path, domain: str, tasks: Sequence[Task], gold_of: GoldOf
) -> tuple[Called, ...]:
    """A call of every tool, which go well one after the other; of gold, where gold has one."""
    process = Subprocess(folder, domain)
    kept: dict[str, Mapping[str, Any]] = {}

    def go_well(*calls: Called) -> bool:
        process.wait(60, {"do": "open", "session": "trial"})
        asked = [
            {"do": "call", "session": "trial", "tool": tool, "arguments": given}
            for tool, given in calls
        ]
        well = [process.wait(60, {**one, "max_chars": 100})["ok"] for one in asked]
        process.wait(60, {"do": "close", "session": "trial"})
        return all(well)

    for tool, given in (*SPARE.items(), *(call for task in tasks for call in gold_of(task))):
        offered = {one["name"] for one in tasks[0].data["tau2"]["tools"]}
        if tool in offered and tool not in kept and go_well(*kept.items(), (tool, given)):
            kept[tool] = given
    process.end("the calls are found")
    return tuple(kept.items())


class _OfADomain:
    domain: ClassVar[str]
    calls: ClassVar[tuple[Called, ...]] = ()
    environment = "tau2"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, fetched: Path, gold_of: GoldOf) -> Sequence[Task]:
        tasks = Tau2Tasks(cls.domain, fetched).load("base")
        cls.calls = cls.calls or calls_of(fetched, cls.domain, tasks, gold_of)
        return tasks


class TestRetail(_OfADomain, EnvironmentContract):
    domain = "retail"
    changing = (
        "modify_user_address",
        {
            **dict.fromkeys(("address1", "address2", "city", "state", "country"), "elsewhere"),
            "user_id": "yusuf_rossi_9620",
            "zip": "19122",
        },
    )


class TestAirline(_OfADomain, EnvironmentContract):
    domain = "airline"
    changing = ("send_certificate", {"user_id": "noah_muller_9847", "amount": 50})


class TestTasks(TaskSetContract):
    task_set = "tau2"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, fetched: Path) -> Mapping[str, Any]:
        return {"data_dir": str(fetched)}


def test_the_page_says_what_there_is(fetched: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tau2.md").read_text(encoding="utf-8")
    assert "\n".join(lines(read(fetched))) in page
    assert f"{len(Manifest.read(fetched).files)} files" in page
    tasks = [(name, task) for name, one in read(fetched).items() for task in one.tasks]
    asserted = [name for name, task in tasks if task["assertions"]]
    assert (
        f"{len(asserted)} tasks have some ({asserted.count('retail')} of retail, all 50 of airline)"
        in page
    )
    assert asserted.count("airline") == 50
    refused = [name for name, task in tasks if task["refused"]]
    assert f"In {len(refused)} tasks of retail the tools refuse" in page and set(refused) == {
        "retail"
    }
    sizes = [
        [len(Tau2Tasks(domain, fetched).load(split)) for split in SPLITS]
        for domain in ("retail", "airline")
    ]
    assert sizes == [[74, 40, 114], [30, 20, 50]]
