"""Rewards stay with the rollout that earned them; gold stays with the host. Real store, gateway and workers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.config import Config, load_config
from harness.errors import RunFailed
from harness.gateway.answers import SeenIds
from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness.records import Attempt, Transition
from harness.rollout import stack
from harness.rollout.controls import RewardShuffle, inverts
from harness.rollout.session import Session
from harness.rollout.stack import RolloutWork
from harness.runs.folder import RunFolder
from harness.testing.calls import transition
from harness.testing.fixtures import StartServer


class Work(RolloutWork):
    """Runs validation-split tasks in training mode against a scripted server."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        server: ScriptedServer,
        tasks: int,
        during: Callable[[Work], None] | None = None,
    ) -> None:
        super().__init__(config, "scripted", folder.logs, f"test-{folder.id}")
        self.folder, self.server, self.count, self.during = folder, server, tasks, during
        self.outcomes: list[Any] = []

    async def work(self, store: Any) -> None:
        async with self.gateway.control() as control:
            await control.set_upstreams([self.server.base_url], model="scripted", token_ids=True)
            session = Session(self.config, "scripted", store, control, self.folder)
            ids = [task.id for task in session.tasks("train")][: self.count]
            pending = [asyncio.create_task(session.rollout(task, "train", 1, 0)) for task in ids]
            if self.during is not None:
                await asyncio.sleep(0)
                await asyncio.to_thread(self.during, self)
            self.outcomes = await asyncio.gather(*pending)


def config(**settings: Any) -> Config:
    base = {
        "rollout.timeout_s": 20,
        "sampling.max_prompt_tokens": 8192,
        "sampling.max_response_tokens": 512,
        "max_turns": 2,
        "agent_match": "write_query",
    }
    return load_config(
        "cpu", None, [f"{k}={v}" for k, v in {**base, **settings}.items()], agent="reference_sql"
    )


def by_question(server_tasks: dict[str, str]) -> Callable[[ReceivedRequest], Reply | str]:
    def script(request: ReceivedRequest) -> Reply | str:
        user = str(request.messages[-1]["content"])
        question = re.search(r"Question: (.*)", user)
        assert question is not None
        if "You check" in str(request.messages[0]["content"]):
            return "THE QUERY IS CORRECT."
        return f"```sql\n{server_tasks[question.group(1)]}\n```"

    return script


def pocket() -> dict[str, tuple[str, str]]:
    from harness_sql.tasks.pocket import PocketTasks

    return {task.question: (task.id, task.gold) for task in PocketTasks().load("train")}


@pytest.mark.slow
def test_a_reward_is_never_attached_to_another_rollouts_tokens(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    tasks = pocket()
    # Every second question is answered with its gold, the others wrongly: the reward must follow the text.
    right = {question for number, question in enumerate(tasks) if number % 2 == 0}
    replies = {
        q: gold if q in right else f"SELECT 'wrong', '{task}'" for q, (task, gold) in tasks.items()
    }
    folder = RunFolder.create(tmp_path, "x")
    work = Work(config(), folder, scripted_server(by_question(replies)), tasks=40)
    work.execute()
    rows = {row["rollout_id"]: row for row in folder.rows("episodes")}
    calls = list(folder.rows("transitions"))
    assert len(rows) == 40 and {row["outcome"] for row in rows.values()} == {"ok"}
    for row in rows.values():
        assert row["reward"] == float(row["question"] in right), row["question"]
    for call in calls:
        row = rows[call["rollout_id"]]
        assert (
            row["question"] in json.loads(call["messages"])[-1]["content"]
        )  # the prompt is of this very rollout
        if call["role"] == "write_query":
            # The scripted engine's ids are the bytes of its text: what is trained is what was said, not re-tokenized.
            assert (
                bytes(token for token in call["response_ids"] if token < 256).decode()
                == call["response_text"]
            )
            assert replies[row["question"]] in call["response_text"]
            assert call["trained"]
        else:
            assert not call["trained"]  # agent_match names the writer only
    assert len({call["response_id"] for call in calls}) == len(calls)
    assert sum(len(outcome.calls) for outcome in work.outcomes) == 40


WRONG = "SELECT 'wrong'"


class Drafts:
    """Wrong, wrong in another way, then right, each draft but the last rejected."""

    def __init__(self, tasks: dict[str, tuple[str, str]]) -> None:
        self._tasks = tasks

    def __call__(self, request: ReceivedRequest) -> str:
        system, user = (str(message["content"]) for message in request.messages)
        question = re.search(r"Question: (.*)", user)
        assert question is not None
        right = self._tasks[question.group(1)][1]
        if "You check" in system:
            return (
                "THE QUERY IS CORRECT."
                if f"```sql\n{WRONG}, 2" in user
                else "THE QUERY IS INCORRECT."
            )
        if "You repair" not in system:
            return f"```sql\n{right}\n```"
        return f"```sql\n{WRONG}, {'2' if f'{WRONG}, 1' in user else '1'}\n```"


PAID = {
    "shared": {
        "write_query/0": 0.0,
        "check_query/0": 0.0,
        "rewrite_query/0": 0.0,
        "check_query/1": 0.0,
    },
    # The first draft was right and rejected, the second wrong and rejected, the third wrong and approved.
    "turn": {
        "write_query/0": 1.0,
        "check_query/0": 1.0,
        "rewrite_query/0": 0.0,
        "check_query/1": 0.0,
    },
    "role": {
        "write_query/0": 1.0,
        "check_query/0": 0.0,
        "rewrite_query/0": 0.0,
        "check_query/1": 1.0,
    },
}
LAST = {"rewrite_query/1": 0.0, "check_query/2": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("credit", "trained"), [("shared", ""), ("turn", ""), ("role", ""), ("role", "write")]
)
def test_what_each_call_is_paid(
    tmp_path: Path, scripted_server: StartServer, credit: str, trained: str
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    settings = config(**{"train.credit": credit, "agent_match": f"'{trained}'", "max_turns": 4})
    work = Work(settings, folder, scripted_server(Drafts(pocket())), tasks=3)
    work.execute()
    expected = {kind: value for kind, value in {**PAID[credit], **LAST}.items() if trained in kind}
    for outcome in work.outcomes:
        assert (outcome.used, outcome.values) == (0.0, expected)
        assert outcome.kinds == tuple(sorted(expected, key=[*PAID[credit], *LAST].index))
    seen: dict[str, list[float | None]] = {}
    for call in sorted(folder.rows("transitions"), key=lambda row: row["index"]):
        assert call["trained"] == (call["paid"] is not None)
        seen.setdefault(call["rollout_id"], []).append(call["paid"])
    for paid in seen.values():
        assert paid == [expected.get(kind) for kind in {**PAID[credit], **LAST}]
    for row in folder.rows("episodes"):
        assert (row["reward"], row["used_reward"], row["first_reward"]) == (0.0, 0.0, 1.0)


@pytest.mark.slow
def test_gold_sql_never_reaches_the_agent(tmp_path: Path, scripted_server: StartServer) -> None:
    tasks = pocket()
    server = scripted_server(lambda request: "```sql\nSELECT 1\n```")
    folder = RunFolder.create(tmp_path, "x")
    Work(config(), folder, server, tasks=20).execute()
    golds = {gold for _, gold in tasks.values()}
    sent = [str(message["content"]) for request in server.requests for message in request.messages]
    assert sent and not [text for text in sent if any(gold in text for gold in golds)]


@pytest.mark.slow
def test_a_killed_runner_costs_nothing_but_time(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    tasks = pocket()
    script = by_question({question: gold for question, (_, gold) in tasks.items()})

    def slow(request: ReceivedRequest) -> Reply | str:
        answer = script(request)
        assert isinstance(answer, str)
        return Reply(answer, delay_s=1.0)

    def kill_the_worker(work: Work) -> None:
        import time

        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and len(work.server.requests) < 5:
            time.sleep(0.05)
        workers = [p for p in children() if "harness.rollout.worker" in command_line(p)]
        assert workers
        os.kill(workers[0].pid, signal.SIGKILL)

    folder = RunFolder.create(tmp_path, "x")
    work = Work(config(), folder, scripted_server(slow), tasks=10, during=kill_the_worker)
    work.execute()
    rows = list(folder.rows("episodes"))
    assert [row["reward"] for row in rows] == [1.0] * 10  # handed to a new worker; none scored 0
    assert work.pools is not None and work.pools.restarts == 1


@pytest.mark.slow
def test_a_killed_gateway_ends_the_run_by_name(
    tmp_path: Path, scripted_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "WATCH_S", 0.4)  # late, as on a busy machine

    def kill_the_gateway(work: Work) -> None:
        work.server.wait_for_requests(2, 90)
        assert work.gateway.pid is not None
        os.kill(work.gateway.pid, signal.SIGKILL)

    folder = RunFolder.create(tmp_path, "x")
    server = scripted_server(lambda request: Reply("SELECT 1", delay_s=60))
    work = Work(config(), folder, server, tasks=10, during=kill_the_gateway)
    with pytest.raises(RunFailed, match=r"the gateway \(process \d+\) ended with status -9"):
        work.execute()
    assert not list(folder.rows("episodes"))  # no rollout is blamed for it


def test_ctrl_c_while_the_services_of_a_failed_run_end_leaves_it_failed(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    def fail(work: Work) -> None:
        pools = work.pools
        assert pools is not None

        def stop(stop: Callable[[], None] = pools.stop) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            stop()

        pools.stop = stop  # type: ignore[method-assign]
        raise RunFailed("too many rollouts failed")

    work = Work(
        config(), RunFolder.create(tmp_path, "x"), scripted_server([]), tasks=0, during=fail
    )
    with pytest.raises(RunFailed, match="too many rollouts failed"):
        work.execute()


@pytest.mark.slow
def test_a_dead_upstream_gives_unscored_rollouts(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    server = scripted_server(lambda request: Reply.failure(500))
    work = Work(config(), folder, server, tasks=6)
    work.execute()
    rows = list(folder.rows("episodes"))
    assert {(row["outcome"], row["reward"]) for row in rows} == {("endpoint_error", None)}
    assert all(outcome.used is None and not outcome.calls for outcome in work.outcomes)
    assert len(server.requests) == 12  # one retry each, no more


def test_a_plugin_that_cannot_start_ends_the_run(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "raise RuntimeError('a framework that is not there')\n"
        "class Broken:\n"
        "    program = 'self_correcting_sql'\n"
        "    async def solve(self, problem, toolbox): ...\n"
    )
    folder = RunFolder.create(tmp_path, "x")
    work = Work(config(), folder, scripted_server([]), tasks=1)
    work.invitation = lambda: dataclasses.replace(  # type: ignore[method-assign]
        RolloutWork.invitation(work), agent=f"{file}:Broken"
    )
    with pytest.raises(RunFailed, match="runners keep dying.*a framework that is not there"):
        work.execute()


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def command_line(process: psutil.Process) -> list[str]:
    """Empty for one that has ended, whether or not its parent knows it."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # ZombieProcess is one
        return []


@pytest.mark.slow
def test_nothing_is_left_after_the_work(tmp_path: Path, scripted_server: StartServer) -> None:
    before = children()  # other tests' of this process
    folder = RunFolder.create(tmp_path, "x")
    Work(
        config(), folder, scripted_server(lambda request: "```sql\nSELECT 1\n```"), tasks=2
    ).execute()
    from harness.rollout.processes import marked

    assert marked(f"test-{folder.id}") == []
    left = [p for p in children() if p not in before]
    assert not [p for p in left if "harness" in " ".join(command_line(p))]


def replied(response_id: str = "1") -> Transition:
    return transition(
        "write_query",
        response_id=response_id,
        prompt_ids=(1,),
        response_ids=(2,),
        logprobs=(-0.1,),
        prompt_tokens=1,
        response_tokens=1,
    )


def test_a_reused_response_id_is_refused() -> None:
    session = object.__new__(Session)
    session._responses = SeenIds(10)
    call = replied()
    attempt = Attempt("r", "a", "ok", "", "x", (call,), (), (), 0, 0)
    session._check(attempt)
    with pytest.raises(AssertionError, match="recorded for another one"):
        session._check(attempt)
    with pytest.raises(AssertionError):
        session._check(
            dataclasses.replace(
                attempt, rollout_id="other", transitions=(replied(response_id="2"),)
            )
        )


def test_shuffled_rewards_keep_their_distribution_and_lose_their_owner() -> None:
    shuffle = RewardShuffle(seed=0)
    own = [float(number % 4 == 0) for number in range(4000)]
    drawn = [
        shuffle.draw(number // 64, f"task-{number % 64}", value) for number, value in enumerate(own)
    ]
    assert abs(sum(drawn) / len(drawn) - 0.25) < 0.03
    agree = sum(a == b for a, b in zip(own, drawn, strict=True)) / len(own)
    assert abs(agree - (0.25**2 + 0.75**2)) < 0.03


@pytest.mark.slow
def test_training_may_be_paid_by_another_reward_than_the_verdict(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    tasks = pocket()
    kinds = ("right", "SELECT 'wrong'", "SELECT 1 WHERE 0", "SELECT FROM")
    kind_of = {question: kinds[number % 4] for number, question in enumerate(tasks)}
    replies = {
        question: gold if kind_of[question] == "right" else kind_of[question]
        for question, (_, gold) in tasks.items()
    }
    folder, server = RunFolder.create(tmp_path, "x"), scripted_server(by_question(replies))
    format_only = {"reward.training": "executes", "reward.training_options.rows": "true"}
    Work(config(**format_only), folder, server, tasks=40).execute()
    rows = list(folder.rows("episodes"))
    assert {kind_of[row["question"]] for row in rows} == set(kinds)
    for row in rows:
        kind = kind_of[row["question"]]
        assert row["reward"] == float(kind == "right")
        assert row["used_reward"] == float(kind in ("right", "SELECT 'wrong'"))
        assert row["reward_version"].startswith("execution_accuracy/")


@pytest.mark.slow
def test_a_share_of_rollouts_is_trained_with_the_opposite_verdict(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    tasks = pocket()
    right = {question for number, question in enumerate(tasks) if number % 2 == 0}
    replies = {q: gold if q in right else "SELECT 'wrong'" for q, (_, gold) in tasks.items()}
    folder, server = RunFolder.create(tmp_path, "x"), scripted_server(by_question(replies))
    Work(config(**{"reward.inverted": 0.3, "seed": 5}), folder, server, tasks=60).execute()
    rows = list(folder.rows("episodes"))
    assert all(
        row["reward"] == float(row["question"] in right) for row in rows
    )  # what is measured stays
    inverted = {row["task_id"] for row in rows if row["used_reward"] != row["reward"]}
    assert all(row["used_reward"] in (row["reward"], 1 - (row["reward"] or 0)) for row in rows)
    assert inverted == {row["task_id"] for row in rows if inverts(5, 0.3, 1, f"{row['task_id']}/0")}
    assert 8 <= len(inverted) <= 28
    assert not any(inverts(5, 0.0, 1, str(who)) for who in range(100))


def test_whose_verdict_a_rollout_has_does_not_depend_on_who_ends_first() -> None:
    def control(order: Sequence[int]) -> dict[tuple[int, int], float]:
        shuffle = RewardShuffle(seed=3)
        for task in order:
            shuffle.note(0, task / 16)
        return {
            (step, task): shuffle.draw(step, f"{task}/0", step + task / 16)
            for step in (1, 2)
            for task in order
        }

    drawn = control(range(16))
    assert drawn == control(list(reversed(range(16))))
    assert all(step - 1 <= value < step for (step, _), value in drawn.items())
    assert len(set(drawn.values())) > 16


def test_the_queue_holds_no_gold(tmp_path: Path) -> None:
    from harness.rollout.request import RolloutRequest
    from harness_sql.tasks.pocket import PocketTasks

    tasks = PocketTasks()
    for task in tasks.load("val")[:20]:
        request = RolloutRequest.build(task, tasks.context(task), config(), "train")
        assert task.gold not in json.dumps(request.dump())
        assert RolloutRequest.parse(json.loads(json.dumps(request.dump()))) == request
