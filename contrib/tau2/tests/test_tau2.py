"""tau2's tasks keep the contracts; gold is worth 1, and a subprocess that fails leaves its attempts unscored."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import sessions
from harness import (
    Attempt,
    EnvironmentContract,
    EnvironmentFault,
    RewardContract,
    Task,
    TaskSetContract,
    TaskSetError,
)
from harness.records import JSON
from harness.rollout import tools
from harness.rollout.tools import HostToolbox
from harness.testing.calls import transition
from harness_dialogues.reward import NOT_ENDED
from harness_dialogues.roles import USER
from harness_tau2 import data, environment
from harness_tau2.data import Manifest, Prepared, prepare
from harness_tau2.environment import Tau2Environment
from harness_tau2.process import Subprocess
from harness_tau2.reward import Tau2Reward
from harness_tau2.tasks import Tau2Tasks
from sessions import played

Called = tuple[str, Mapping[str, JSON]]
GoldOf = Callable[[Task], list[Called]]
LEND = {"books": ["1"], "reader": "Ana", "days": 7, "kind": "short"}
CALLS = (
    ("find_book", {"title": "Emma"}),
    ("calculate", {"expression": "variables"}),
    ("take_back", {"book": "2"}),
    ("wish_for", {"wishes": [{"title": "Emma", "copies": 2}]}),
    ("lend_books", {**LEND, "books": ["2"]}),
)


class TestTasks(TaskSetContract):
    task_set = "tau2"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, library: Path) -> Mapping[str, Any]:
        return {"data_dir": str(library)}


class TestEnvironment(EnvironmentContract):
    environment = "tau2"
    calls = CALLS
    changing = ("lend_books", LEND)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, library: Path) -> Sequence[Task]:
        return Tau2Tasks(data_dir=library).load("base")


class TestReward(RewardContract):
    reward = "tau2"

    @classmethod
    def left(cls, answer: str | None) -> Mapping[str, JSON] | None:
        try:
            return {"changes": json.loads(answer or "")["changes"]}
        except (ValueError, KeyError, TypeError):
            return None

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, library: Path) -> Sequence[Task]:
        return [
            task
            for task in Tau2Tasks(data_dir=library).load("base")
            if '{"changes": null' not in task.gold
        ]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Tau2Environment:
    """An environment with subprocesses of its own."""
    made = Tau2Environment()
    monkeypatch.setattr(tools, "environment", lambda name: made)
    return made


toolbox = partial(sessions.toolbox, name="tau2", program="dialogue", max_chars=20_000)


def do(what: str) -> tuple[str, Mapping[str, JSON]]:
    return "calculate", {"expression": what}


def one_of(library: Path, id: str) -> Task:
    return next(
        task for task in Tau2Tasks(data_dir=library).load("base") if task.id == f"library/{id}"
    )


def processes(folder: Path) -> list[psutil.Process]:
    """The subprocesses of a folder that this process has started."""
    found = []
    for one in psutil.Process().children():
        try:
            found += [one] if str(folder) in one.cmdline() else []
        except psutil.Error:
            continue
    return found


def ended() -> list[psutil.Process]:
    """Processes that this one has started and never asked for their end."""
    return [one for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE]


def attempt(left: object, answer: str = "", *heard: str, last: str = USER) -> Attempt:
    """One that the user has heard so much of."""
    talk: list[dict[str, str]] = [
        {"role": "system", "content": "17"},
        {"role": "user", "content": "Hello, Nine."},
    ]
    for text in heard:
        talk += [{"role": "assistant", "content": "I know: 17."}, {"role": "user", "content": text}]
    calls = (transition(USER, 0), transition(USER, 1, messages=tuple(talk)))
    calls += (
        ()
        if last == USER
        else (transition(last, 2, messages=({"role": "user", "content": "17"},)),)
    )
    state = None if left is None else {"changes": left}
    return Attempt("r", "1", "ok", "", answer, calls, (), (), 0.0, 0.0, state)  # type: ignore[arg-type]


def score(task: Task, *given: object, **more: str) -> tuple[float | None, dict[str, float]]:
    verdict = asyncio.run(Tau2Reward().score(task, attempt(*given, **more)))  # type: ignore[arg-type]
    return verdict.value, dict(verdict.parts)


def test_what_cannot_be_judged_is_left_out_and_says_why(library: Path) -> None:
    tasks_file = json.loads((library / data.TASKS).read_text())["library"]
    assert {task["id"]: task["left_out"] for task in tasks_file["tasks"] if "left_out" in task} == {
        "judged": "its reward needs NL_ASSERTION",
        "begun": "it starts with another database",
        "user": "its user calls tools",
        "goldless": "it has no gold actions",
        "broken": "its gold cannot be replayed: KeyError: '9'",
    }
    tasks = Tau2Tasks(data_dir=library)
    ids = {
        split: [task.id.removeprefix("library/") for task in tasks.load(split)]
        for split in ("train", "val")
    }
    assert ids == {"train": ["lend", "nothing"], "val": ["say", "refused", "both", "words"]}
    assert [task["refused"] for task in tasks_file["tasks"] if task["id"] == "refused"] == [1]
    assert tasks.describe()["left_out"] == 5
    assert tasks.context(tasks.load("val")[0])["policy"].startswith("# Library\n")


def test_tools_are_told_as_their_signatures_and_texts_say(library: Path) -> None:
    schemas = json.loads((library / data.TASKS).read_text())["library"]["tools"]
    tools = {one["name"]: one for one in schemas}
    assert list(tools) == ["calculate", "find_book", "lend_books", "take_back", "wish_for"]
    assert tools["find_book"] == {
        "name": "find_book",
        "description": "Find a book by its title. If there is none, the function\nwill return an error message.",
        "parameters": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "The title, such as 'Emma'."}
            },
            "required": ["title"],
            "additionalProperties": False,
        },
    }
    lend = tools["lend_books"]["parameters"]["properties"]
    assert lend["books"] == {
        "type": "array",
        "description": "Numbers of the books.",
        "items": {"type": "string"},
    }
    assert lend["days"]["type"] == "integer" and lend["kind"]["enum"] == ["long", "short"]
    wish, anything = tools["wish_for"]["parameters"]["properties"]["wishes"]["items"]["anyOf"]
    assert set(wish["properties"]) == {"title", "copies"} and anything["type"] == "object"


async def worth(
    made: Tau2Environment, task: Task, actions: Sequence[Called]
) -> tuple[float | None, float | None]:
    """What a task's gold is worth when a session plays it, and what doing nothing is."""
    acts, idle = toolbox(made, task), toolbox(made, task)
    calls = await played(acts, *actions)
    await played(idle)
    assert len(calls) == len(actions) and not any(call.fault for call in calls), [
        call for call in calls if call.fault
    ]
    required = json.loads(task.gold)["said"]
    reward = Tau2Reward()
    heard = tuple(f"It is {text}." for text in required)
    full = await reward.score(task, replace(attempt(None, "", *heard), state=acts.state))
    none = await reward.score(task, replace(attempt(None), state=idle.state))
    return full.value, none.value


def oracle(
    made: Tau2Environment, tasks: Sequence[Task], gold_of: GoldOf
) -> dict[str, tuple[float | None, ...]]:
    async def play() -> dict[str, tuple[float | None, ...]]:
        return {task.id: await worth(made, task, gold_of(task)) for task in tasks}

    return asyncio.run(play())


@pytest.mark.slow
def test_gold_is_worth_1_and_doing_nothing_where_gold_does_nothing(
    made: Tau2Environment, library: Path, gold_of: GoldOf
) -> None:
    found = oracle(made, Tau2Tasks(data_dir=library).load("base"), gold_of)
    assert {values[0] for values in found.values()} == {1.0}
    assert {id for id, values in found.items() if values[1] == 1.0} == {"library/nothing"}
    assert {values[1] for values in found.values()} == {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gold_of_the_benchmark_is_worth_1(
    made: Tau2Environment, fetched: Path, gold_of: GoldOf
) -> None:
    tasks = Tau2Tasks(data_dir=fetched).load("base")
    found = oracle(made, tasks, gold_of)
    assert len(found) == 164 and {values[0] for values in found.values()} == {1.0}
    idle = [id.split("/")[0] for id, values in found.items() if values[1] == 1.0]
    assert (idle.count("retail"), idle.count("airline")) == (7, 19), (
        "gold changes nothing, and nothing is to be said"
    )
    assert len(tasks) - len(idle) == sum(values[1] == 0.0 for values in found.values())
    left_out = [
        task for one in data.read(fetched).values() for task in one.tasks if "left_out" in task
    ]
    assert not left_out and {name: len(one.tools) for name, one in data.read(fetched).items()} == {
        "retail": 15,
        "airline": 14,
    }


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_attempts_of_the_benchmark_do_not_see_each_other(
    made: Tau2Environment, fetched: Path, gold_of: GoldOf, domain: str
) -> None:
    tasks = Tau2Tasks(domain, fetched).load("base")
    task = max(tasks, key=lambda task: len(json.loads(task.gold)["changes"]))

    async def play() -> list[object]:
        boxes = [toolbox(made, task) for _ in range(3)]
        for number, box in enumerate(boxes):
            await box.open(f"{domain}/{number}")
        for call in gold_of(task):
            await boxes[1].call(*call)
        for box in boxes:
            await box.close()
        return [(box.state or {})["changes"] for box in boxes]

    assert asyncio.run(play()) == [{}, json.loads(task.gold)["changes"], {}]


def test_words_count_where_the_user_hears_them(library: Path) -> None:
    say, both = one_of(library, "say"), one_of(library, "both")
    right = {"database": 1.0, "communicated": 1.0}
    assert score(say, {}, "", "From nine to five, or 17, o'clock.") == (1.0, right)
    assert score(say, {}, "Until 17.", "From NINE.") == (1.0, right), "the last words count, too"
    assert score(say, {}, "Until 17.", last="agent") == (0.0, {**right, "communicated": 0.0})
    assert score(say, {}, "", "Nine") == (0.0, {**right, "communicated": 0.0}), (
        "what the user says does not count"
    )
    changes = json.loads(both.gold)["changes"]
    assert set(changes) == {"books/1", "books/2"}
    assert score(both, changes, "1,000 it is.")[0] == 1.0, "commas of the agent do not count"
    assert score(both, changes, "10 00 it is.")[0] == 0.0
    assert score(both, {**changes, "books/3": "1"}, "1000")[1] == {
        "database": 0.0,
        "communicated": 1.0,
    }
    assert score(both, {}, "1000")[0] == score(both, {**changes, "books/1": "1"}, "1000")[0] == 0.0
    assert score(both, None, "1000") == (None, {})
    words = one_of(library, "words")
    assert score(words, {"books/1": "1"}, "We are closed.")[0] == 1.0, "its basis has no database"
    assert score(words, {"books/1": "1"}, "We are open.")[0] == 0.0


def test_a_dialogue_that_its_bounds_end_says_so_and_other_gold_is_refused(library: Path) -> None:
    task = one_of(library, "nothing")
    flags = [
        asyncio.run(Tau2Reward().score(task, attempt({}, last=role))).flags
        for role in (USER, "agent")
    ]
    assert flags == [(), (NOT_ENDED,)]
    assert not Tau2Reward().refuses(task)
    for gold in ("three", "[1]", '{"changes": {}}'):
        assert "not of tau2" in Tau2Reward().refuses(replace(task, gold=gold))


def test_what_the_model_gets_wrong_is_an_observation(made: Tau2Environment, library: Path) -> None:
    box = toolbox(made, one_of(library, "lend"), max_chars=40)
    calls = asyncio.run(
        played(
            box,
            ("find_book", {"title": "Ulysses"}),
            ("lend_books", {**LEND, "books": ["1", "2"]}),
            ("take_back", {"book": "9"}),
            ("wish_for", {"wishes": [{"name": "Emma"}]}),
            ("lend_books", {**LEND, "days": 7.0, "books": ["1"]}),
            do("much"),
        )
    )
    assert not box.fault and not any(call.fault for call in calls)
    assert [call.text for call in calls[:3]] == [
        "Error: Book not found",
        "Error: Book 2 is lent",
        "Error: '9'",
    ]
    assert (
        calls[3].text.startswith("Error: 2 validation errors for Wish")
        and "characters in all" in calls[3].text
    )
    assert calls[4].text == "Error: Book 1 is lent", (
        "what a call did before it failed stays done, as in tau2-bench"
    )
    assert calls[5].ok and calls[5].text == f"{'much' * 10}\n... (400 characters in all)"
    assert set((box.state or {})["changes"]) == {"books/1"}  # type: ignore[arg-type]


def test_a_whole_number_is_one_however_it_is_written(made: Tau2Environment, library: Path) -> None:
    task = one_of(library, "lend")
    box = toolbox(made, task)
    asyncio.run(played(box, ("lend_books", {**LEND, "days": 7.0})))
    assert box.state == {"changes": json.loads(task.gold)["changes"]}


def test_no_key_of_ours_reaches_the_side_process(
    made: Tau2Environment, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-that-nobody-may-see")
    (call,) = asyncio.run(played(toolbox(made, one_of(library, "lend")), do("variables")))
    assert call.ok and "PATH" in call.text and "OPENAI_API_KEY" not in call.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ("die", "it ended (last stderr line: out of paper)"),
        ("garble", "it wrote b'no JSON"),
        ("flood", "it wrote b'xxx"),
        ("hang", "it did not answer within 2 s"),
    ],
)
def test_a_side_process_that_fails_is_no_failure_of_the_agent_and_is_started_anew(
    made: Tau2Environment, library: Path, how: str, fault: str
) -> None:
    task, before = one_of(library, "lend"), ended()

    async def play() -> None:
        untouched, first, later = toolbox(made, task), toolbox(made, task, 2.0), toolbox(made, task)
        await untouched.open("beside")
        assert not await played(first, do(how), CALLS[0])
        assert f"environment 'tau2': the subprocess of 'library': {fault}" in first.fault
        assert set(ended()) <= set(before), "it has been waited for"
        with pytest.raises(EnvironmentFault):
            await untouched.call(*CALLS[0])
        await untouched.close()
        assert untouched.fault and untouched.state is None, (
            "attempts that share it have lost their database"
        )
        assert [call.ok for call in await played(later, CALLS[0])] == [True] and not later.fault

    asyncio.run(play())


def test_a_process_that_is_killed_between_calls_is_found(
    made: Tau2Environment, library: Path
) -> None:
    async def play() -> HostToolbox:
        box = toolbox(made, one_of(library, "lend"))
        await box.open("killed")
        for process in processes(library):
            process.send_signal(signal.SIGKILL)
        await box.close()
        return box

    box = asyncio.run(play())
    assert "the subprocess of 'library'" in box.fault and box.state is None


def test_a_cancelled_call_costs_the_attempt_alone(made: Tau2Environment, library: Path) -> None:
    async def play() -> tuple[HostToolbox, HostToolbox]:
        task = one_of(library, "lend")
        cut, other = toolbox(made, task), toolbox(made, task)
        await cut.open("cut")
        call = asyncio.ensure_future(cut.call("lend_books", LEND))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        await cut.close()
        await played(other, *CALLS)
        return cut, other

    cut, other = asyncio.run(play())
    assert not cut.fault and not other.fault and len(other.tool_calls) == len(CALLS)


def test_processes_are_shared_by_a_bounded_number_of_attempts_and_end_with_their_environment(
    made: Tau2Environment, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "SESSIONS", 3)
    before = {one.pid for one in processes(library)}

    async def play() -> list[psutil.Process]:
        boxes = [toolbox(made, one_of(library, "lend")) for _ in range(7)]
        await asyncio.gather(*(box.open(f"many/{number}") for number, box in enumerate(boxes)))
        assert not any(box.fault for box in boxes), [box.fault for box in boxes]
        running = [one for one in processes(library) if one.pid not in before]
        for box in boxes:
            await box.close()
        await played(toolbox(made, one_of(library, "lend")), CALLS[0])
        assert {one.pid for one in processes(library)} - before == {one.pid for one in running}
        return running

    running = asyncio.run(play())
    assert len(running) == 3
    for pool in made._pools.values():
        for process in list(pool._sessions):
            process.end("the test is over")
    assert not psutil.wait_procs(running, timeout=20)[1]


def test_a_side_process_ends_with_who_asks_it(library: Path) -> None:
    process = Subprocess(library, "library")
    assert process.wait(60, {"do": "describe"})["tools"]
    (running,) = [one for one in processes(library) if one.pid == process.pid]
    del process
    assert not psutil.wait_procs([running], timeout=20)[1]


@pytest.mark.slow
def test_data_that_has_changed_is_refused_by_name(
    wheel: tuple[Path, str], made: Tau2Environment, tmp_path: Path
) -> None:
    folder = tmp_path / "tau2"
    with pytest.raises(TaskSetError, match=r"tau2's data is not in .*Fetch it: harness data tau2"):
        Tau2Tasks(data_dir=folder).load("val")
    with pytest.raises(TaskSetError, match="is not inspect_evals==0.28.0"):
        prepare(folder, wheel[0])
    assert list(tmp_path.iterdir()) == [], "no folder is begun"
    prepare(folder, *wheel, ["library"])
    tasks = Tau2Tasks(data_dir=folder)
    task = tasks.load("val")[0]
    made.check(made.payload(task, {"timeout_s": 1, "max_chars": 100}))
    policy = folder / "inspect_evals/tau2/data/domains/library/policy.txt"
    policy.write_text("Do as you like.")
    assert tasks.check() == [policy.relative_to(folder).as_posix()]
    with pytest.raises(TaskSetError, match=r"policy\.txt has changed since it was fetched"):
        Tau2Tasks(data_dir=folder).load("val")
    with pytest.raises(TaskSetError, match="has library"):
        prepare(folder, *wheel, ["library"])
        Tau2Tasks("retail", folder).load("val")
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("of years")
    (other / "manifest.json").write_text("{}")
    with pytest.raises(TaskSetError, match="without tau2 data and is not replaced"):
        prepare(other, *wheel, ["library"])
    assert (other / "thesis.txt").read_text() == "of years"


@pytest.mark.slow
def test_data_list_and_verify_know_it(
    wheel: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tau2"
    monkeypatch.setenv("HARNESS_TAU2_DATA_DIR", str(folder))

    def run_data(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "harness", "data", *arguments], capture_output=True, text=True
        )

    def listed() -> dict[str, str]:
        return next(
            row for row in json.loads(run_data("list", "--json").stdout) if row["name"] == "tau2"
        )

    assert listed()["state"] == "not prepared" and "harness data tau2" in listed()["detail"]
    assert run_data("verify", "tau2").returncode == 2
    tasks = len(prepare(folder, *wheel, ["library"])["library"].tasks)
    assert listed() == {
        "name": "tau2",
        "folder": str(folder),
        "state": "prepared",
        "detail": f"library {tasks}",
    }
    files = len(Manifest.read(folder).files)
    assert run_data("verify", "tau2").stdout == f"{folder}: ok ({files} files checked)\n"
    (folder / "inspect_evals/tau2/data/domains/library/policy.txt").write_text("Do as you like.")
    assert listed()["state"] == "damaged"
    found = run_data("verify", "tau2")
    assert (
        found.returncode == 1
        and "library/policy.txt is missing or has changed since it was fetched\n" in found.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "damaged", ['{"domains": ["library"], "files": null}', '{"files": {', "[]"]
)
def test_a_damaged_manifest_is_told_and_what_is_said_to_mend_it_does(
    damaged: str, wheel: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "tau2"
    prepare(folder, *wheel, ["library"])
    (folder / "manifest.json").write_text(damaged)
    with pytest.raises(
        TaskSetError, match=r"manifest\.json cannot be read: .*Fetch it: harness data tau2"
    ):
        Manifest.read(folder)
    prepare(folder, *wheel, ["library"])
    assert Manifest.read(folder).changed(folder) == []


def test_a_wheel_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "nowhere.whl"):
        with pytest.raises(TaskSetError, match="is no file. Name the wheel of inspect_evals"):
            prepare(tmp_path / "tau2", wrong)


def test_other_tools_than_the_task_was_loaded_with_are_refused(
    made: Tau2Environment, library: Path
) -> None:
    task = one_of(library, "lend")
    needed = task.data["tau2"]
    changed = [{**needed["tools"][0], "description": "Another one."}, *needed["tools"][1:]]
    box = toolbox(made, replace(task, data={"tau2": {**needed, "tools": changed}}))
    asyncio.run(played(box))
    assert "tool 'calculate' has changed since the tasks were loaded" in box.fault


def test_a_domain_that_does_not_start_says_why(wheel: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(
        TaskSetError, match=r"'retail' cannot be prepared: .*No module named"
    ) as refused:
        prepare(tmp_path / "tau2", *wheel, ["retail"])
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []


def test_nothing_of_the_gold_travels(made: Tau2Environment, library: Path) -> None:
    for task in Tau2Tasks(data_dir=library).load("base"):
        sent = json.dumps(made.payload(task, {"timeout_s": 1, "max_chars": 100}))
        golds: Sequence[str] = [
            *(json.loads(task.gold)["changes"] or {}).values(),
            *json.loads(task.gold)["said"],
        ]
        assert not [gold for gold in golds if len(gold) > 4 and gold in sent]


def test_the_manifest_says_what_it_is_and_where_it_is_from(
    library: Path, wheel: tuple[Path, str]
) -> None:
    found = Manifest.read(library)
    assert (found.licence, found.source_sha256, found.domains) == ("MIT", wheel[1], ("library",))
    names = set(found.files)
    assert {"tasks.json", "inspect_evals-0.dist-info/licenses/LICENSE"} <= names
    assert not [name for name in names if "telecom" in name or name.endswith("tau2/__init__.py")]
    there = {file.relative_to(library).as_posix() for file in library.rglob("*") if file.is_file()}
    assert there - {"manifest.json"} == names, "no file is unlisted, also after tools ran"
    assert isinstance(data.read(library)["library"], Prepared)
