"""Supervised training: rows of gold answers, the gradient of their cross entropy, and no rollouts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import torch
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config

from harness.config import load_config
from harness.contracts.programs import TaughtCall
from harness.errors import TaskSetError
from harness.policies import resolve
from harness.records import Task
from harness.rollout.session import Session
from harness.runs.folder import RowLog, RunFolder
from harness.runs.monitor import Monitor
from harness.training.data import check_gold
from harness_policy_server.server import PolicyServer
from harness_policy_server.tokens import end_of_turn
from harness_sql.self_correcting.program import SelfCorrectingSQL
from harness_sql.self_correcting.scenarios import stage
from harness_verl import batches
from harness_verl.compose import verl_settings
from harness_verl.loop import HarnessAgentLoop
from harness_verl.names import SUPERVISED, measured
from harness_verl.rows import UNTRAINED, DialogueRow
from harness_verl.taught import SCORE, Teacher, without_rollouts

from .test_merging import Queue, dealt, gradients
from .test_packing import SHAPE, engine


class Taught(Queue):
    """A step's rows in the place of TransferQueue: one a task, none for task 1."""

    def __init__(self) -> None:
        self.rows: dict[str, DialogueRow] = {}
        self.about: dict[str, dict[str, Any]] = {}
        for task in range(4):
            for session in range(4):
                row = UNTRAINED
                if session == 0 and task != 1:
                    reply = [7 * task + 1, 3, 5 + task, 2][: 2 + task]
                    row = DialogueRow(
                        "w", False, [9, 8, task], reply, [1] * len(reply), [0.0] * len(reply)
                    )
                self.rows[f"t{task}_{session}_0"] = row

    def kv_batch_get(
        self, keys: list[str], select_fields: list[str], **_: Any
    ) -> dict[str, list[Any]]:
        if select_fields == ["rm_scores"]:
            return {"rm_scores": [torch.tensor([SCORE]) for _ in keys]}
        return super().kv_batch_get(keys, select_fields)

    def kv_clear(self, keys: Sequence[str], partition_id: str) -> None:
        """Untrained sessions leave the queue."""
        assert all(self.rows[key] is UNTRAINED for key in keys)


def cross_entropies(queue: Queue, keys: list[str]) -> list[torch.Tensor | None]:
    """Gradients of plain torch's cross entropy, the mean over the tokens of an optimizer step's replies."""
    model = engine(Qwen2Config(**SHAPE), "sdpa").module
    losses = []
    for key in keys:
        if key.startswith("pad"):
            continue
        row = queue.rows[key]
        logits = model(torch.tensor([[*row.prompt_ids, *row.response_ids]])).logits[0]
        of_reply = logits[len(row.prompt_ids) - 1 : -1]
        losses.append(cross_entropy(of_reply, torch.tensor(row.response_ids), reduction="none"))
    torch.cat(losses).mean().backward()
    return [value.grad for value in model.parameters()]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_the_gradient_is_that_of_cross_entropy_on_the_replies(
    monkeypatch: pytest.MonkeyPatch, packed: bool, parts: int
) -> None:
    queue = Taught()
    monkeypatch.setattr(batches, "tq", queue)
    monkeypatch.setattr(batches, "upsample_batch_to_divisible_size", queue.fill)
    rewards = (SCORE,) * 4
    steps, advantages, logged = dealt(
        queue, "shared", False, parts, threshold=SCORE, rewards=rewards, taught=True
    )
    trained = [key for keys in steps for key in keys if not key.startswith("pad")]
    assert sorted(trained) == ["t0_0_0", "t2_0_0", "t3_0_0"]
    assert logged["training/taught_calls_total"] == 3 and logged["training/left_out_total"] == 1
    assert logged["training/taught_tokens_total"] == 2 + 4 + 4
    assert logged["training/cross_entropy"] == 0.25 and "actor/pg_loss" not in logged
    assert not {"training/chosen_tokens", "training/untrained_sessions"} & {*logged}

    found = gradients(queue, steps, advantages, packed, several=SUPERVISED, one=SUPERVISED)
    for keys, ours in zip(steps, found, strict=True):
        theirs = cross_entropies(queue, keys)
        assert max(float(value.abs().max()) for value in theirs if value is not None) > 1e-2
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, atol=1e-5, rtol=1e-5), (one - other).abs().max()


def session_of(folder: RunFolder, *overrides: str) -> Session:
    """A session without services, which taught calls do not need."""
    config = load_config(
        "cpu", None, ["train.algorithm=supervised", *overrides], agent="reference_sql"
    )
    nothing: Any = None
    return Session(config, "policy", nothing, nothing, folder)


def test_rows_are_whole_or_left_out(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    session = session_of(folder)
    task = session.tasks("train")[0]
    call = session.taught(task.id)
    assert call is not None and call.role == "write_query" and task.gold in call.reply
    path = resolve("pocket-sql")
    row = Teacher(session.config, path).row(call)
    assert row is not None and row.response_mask == [1] * len(row.response_ids)
    prompt, reply = len(row.prompt_ids), len(row.response_ids)
    for key, tokens in (("max_prompt_tokens", prompt), ("max_response_tokens", reply)):
        fits = session_of(folder, f"sampling.{key}={tokens}")
        assert Teacher(fits.config, path).row(call) == row
        short = session_of(folder, f"sampling.{key}={tokens - 1}")
        assert Teacher(short.config, path).row(call) is None


def test_prompts_are_those_of_the_policy_server(tmp_path: Path) -> None:
    """With the arguments of the chat template, which this template shows."""
    policy = tmp_path / "policy"
    shutil.copytree(resolve("pocket-sql"), policy)
    settings = json.loads((policy / "tokenizer_config.json").read_text())
    template = (
        "{% for one in messages %}{{ one.content }}\n{% endfor %}"
        "{% if enable_thinking %}SELECT{% else %}count{% endif %}"
        "{% if add_generation_prompt %}\n{% endif %}"
    )
    settings["chat_template"] = template
    (policy / "chat_template.jinja").write_text(template)
    (policy / "tokenizer_config.json").write_text(json.dumps(settings))
    server = PolicyServer(str(policy), slots=1, response_length=8, max_length=512)
    folder = RunFolder.create(tmp_path, "x")
    prompts = []
    for thinks in (True, False):
        arguments = {"enable_thinking": thinks}
        override = f"sampling.chat_template_kwargs={json.dumps(arguments)}"
        session = session_of(folder, override)
        call = session.taught(session.tasks("train")[0].id)
        assert call is not None
        row = Teacher(session.config, str(policy)).row(call)
        request = {"messages": call.messages, "chat_template_kwargs": arguments}
        assert row is not None and row.prompt_ids == server._prompt_ids(request)
        assert row.response_ids[-1] in server.decoder.stop_ids
        prompts.append(row.prompt_ids)
    assert prompts[0] != prompts[1]


def test_a_reply_is_read_back_as_the_gold_query(tmp_path: Path) -> None:
    program = SelfCorrectingSQL()
    _, problem = stage(program.scenarios[0], tmp_path)
    for gold in ("SELECT 1", "SELECT a\n  FROM b -- c", "SELECT '`'"):
        call = program.taught(problem, gold)
        assert call is not None and program.prompts.parse_sql(call.reply) == gold
        messages = program.prompts.write(problem).messages
        assert (call.role, call.messages) == ("write_query", messages)
    assert program.taught(problem, "SELECT '```'") is None


def test_tasks_with_answers_in_words_alone_cannot_be_taught(tmp_path: Path) -> None:
    config = load_config("cpu", None, ["train.algorithm=supervised"], agent="reference_sql")
    query = Task("a", "files", "train", "?", "SELECT 1", data={"gold_is": "query"})
    words = Task("b", "files", "train", "?", "one", data={"gold_is": "answer"})
    check_gold(config, [words, query])
    with pytest.raises(TaskSetError, match="none of the 1 training tasks of 'pocket'"):
        check_gold(config, [words])


class Template:
    """A tokenizer of characters with a template that ends a reply with `|`, or without an end."""

    def __init__(self, end: str, eos: int | None) -> None:
        self._end, self.eos_token_id = end, eos

    def apply_chat_template(self, messages: list[dict[str, str]], *, tokenize: bool) -> str:
        assert not tokenize
        return "".join(f"<{one['role']}>{one['content']}{self._end}" for one in messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]


def test_a_reply_ends_with_the_stop_token_of_the_template() -> None:
    stops = {ord("|"), ord("E")}
    assert end_of_turn(Template("\n|\n", ord("E")), stops, {}) == ord("|")
    assert end_of_turn(Template("", ord("E")), stops, {}) == ord("E")
    # The template's own end does not stop this policy.
    assert end_of_turn(Template("|", ord("E")), {ord("E")}, {}) == ord("E")
    with pytest.raises(ValueError, match="no token that ends a reply"):
        end_of_turn(Template("", None), stops, {})


@pytest.mark.parametrize(
    ("session_id", "reply", "trained"), [(0, "short", True), (1, "short", False), (0, None, False)]
)
def test_only_the_first_session_of_a_task_has_a_row(
    tmp_path: Path, session_id: int, reply: str | None, trained: bool
) -> None:
    asked = []

    def taught(task_id: str) -> TaughtCall | None:
        asked.append(task_id)
        messages = [{"role": "user", "content": "?"}]
        return None if reply is None else TaughtCall("write_query", messages, reply)

    config = load_config("cpu", None, ["train.algorithm=supervised"], agent="reference_sql")

    async def connected() -> Any:  # without `rollout`: none may be made
        return SimpleNamespace(taught=taught, config=config)

    loop = object.__new__(HarnessAgentLoop)
    loop._connected = connected  # type: ignore[method-assign]
    loop._session_file = tmp_path / "session"
    loop.config = OmegaConf.create(
        verl_settings(
            config,
            device="cpu",
            model_path=resolve("pocket-sql"),
            run_dir=tmp_path,
            steps=1,
        )
    )
    loop.config.trainer.v1.trainer_mode = "sync"
    row = {"extra_info": {"task_id": "t", "split": "train"}, "global_steps": 3}
    (output,) = asyncio.run(loop.run({}, **row, session_id=session_id))
    assert any(output.response_mask) == trained
    assert asked == (["t"] if session_id == 0 else [])
    assert output.reward_score == SCORE and output.num_turns == 0
    assert output.extra_fields["min_global_steps"] == 2


def test_no_figure_of_a_rollout_is_reported() -> None:
    metrics = {
        "critic/score/mean": 0.0,
        "critic/rewards/max": 0.0,
        "training/off_policy/trajectory_spans/mean": 1.0,
        "training/taught_calls_total": 4.0,
        "timing_s/gen": 0.2,
        "timing_s/step": 2.0,
    }
    without_rollouts(metrics)
    assert measured(metrics) == {"taught_calls": 4.0, "step_s": 2.0}
    assert not any(name.startswith("critic/") for name in metrics)
    assert measured({"timing_s/gen": 0.2}) == {"rollout_s": 0.2}


def test_progress_moves_without_rollouts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 4, {"train": 16, "val": 1}, 0.5)
    steps = RowLog(folder, "steps")
    data = {"step_s": 3.0, "taught_calls": 4.0, "taught_tokens": 80.0, "left_out": 0.0}
    steps.add([{"step": 1, "data": data}])
    progress = monitor.poll()
    assert (progress.step, progress.remaining_s, progress.phase) == (1, 9.0, "step 1")
    assert (progress.reward, progress.mixed, progress.rollouts) == (None, None, 0)
    assert (progress.expected, progress.warning, progress.remark) == (0, "", "")
    steps.add([{"step": 2, "data": data | {"left_out": 3.0}}])
    progress = monitor.poll()
    assert progress.phase == "step 2" and progress.warning.startswith("step 2: 3 tasks are not")
    for step in (3, 4):
        steps.add([{"step": step, "data": data}])
    assert monitor.poll().remark == ""  # no groups are no groups with equal rewards


def test_the_identity_names_the_algorithm_and_the_same_options() -> None:
    grpo = load_config("cpu", None, agent="reference_sql").train
    supervised = load_config(
        "cpu", None, ["train.algorithm=supervised"], agent="reference_sql"
    ).train
    one, other = (train.identity("cpu", False, False) for train in (grpo, supervised))
    assert one.pop("algorithm") == "grpo" and other.pop("algorithm") == "supervised"
    assert one == other
