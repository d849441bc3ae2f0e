"""The course `pocket_puzzles`: what it teaches is what agents are asked, and `pocket-puzzles` has learnt it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("harness_reasoning_gym", reason="needs the plugin harness-reasoning-gym")
from harness.config import load_config
from harness.mock_model.completion import Reply
from harness.mock_model.server import ScriptedServer
from harness.policies import resolve
from harness_reasoning_gym.puzzles import extract_answer, puzzles
from harness_reasoning_gym.tasks import VAL_SEED, ReasoningGymTasks
from harness_sql.tool_loop.prompts import WITHOUT_TOOLS
from recipes.finetune.rows import HASHED_BLOCKS, make_block, start_worker
from recipes.pocket_puzzles import samples
from recipes.pocket_puzzles.course import HELD_OUT, prompted, rewards
from recipes.pocket_puzzles.samples import DATASETS, PuzzleExamples, asked, said

MANY = 6


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(resolve("pocket-puzzles"))


@pytest.mark.slow
@pytest.mark.parametrize("dataset", DATASETS)
def test_an_agent_is_asked_what_the_course_teaches_and_a_worked_answer_is_right(
    dataset: str, tmp_path: Path
) -> None:
    made = puzzles(dataset, 0, "{}", VAL_SEED, HELD_OUT)
    replies = {
        entry["question"]: said(dataset, entry, 0.0, Random(1))
        for entry in map(made.__getitem__, range(MANY))
    }

    def teacher(request: Any) -> Reply:
        text = request.messages[-1]["content"]
        return Reply(next(reply for question, reply in replies.items() if text.endswith(question)))

    with ScriptedServer(teacher, token_ids=False) as model:
        command = [
            sys.executable,
            "-m",
            "harness",
            "eval",
            "--preset",
            "pocket-puzzles",
            "--agent",
            "reference_tools",
        ]
        command += [
            "--split",
            "val",
            "--limit",
            str(MANY),
            "--endpoint",
            model.base_url,
            "--runs-dir",
            str(tmp_path),
        ]
        command += [
            "--set",
            f"task.options.dataset={dataset}",
            "--set",
            f"task.options.val_size={MANY}",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["outcomes"] == {"ok": MANY} and result["accuracy"] == 1.0, result
    requests = [request.messages for request in model.requests]
    assert sorted(map(str, requests)) == sorted(str(asked(question)) for question in replies)
    assert not any(request.body.get("tools") for request in model.requests)


@pytest.mark.parametrize("dataset", DATASETS)
def test_working_is_right_and_guesses_seldom_are(dataset: str) -> None:
    made = puzzles(dataset, 0, "{}", samples.FIRST, 400)
    rng = Random(2)

    def graded(text: str, entry: Any) -> float:
        return float(made.score_answer(answer=extract_answer(text), entry=entry))

    entries = [made[number] for number in range(400)]
    assert all(graded(said(dataset, entry, 0.0, rng), entry) == 1.0 for entry in entries)
    replies = [(said(dataset, entry, 1.0, rng), entry) for entry in entries]
    guesses = [graded(text, entry) for text, entry in replies if text.startswith("<answer>")]
    assert 160 < len(guesses) < 360 and 0.1 < guesses.count(1.0) / len(guesses) < 0.3
    assert all(
        graded(text, entry) == 1.0 for text, entry in replies if not text.startswith("<answer>")
    )


def test_questions_of_validation_are_not_learnt() -> None:
    kept = {
        dataset: {task.question for task in ReasoningGymTasks(dataset).load("val")}
        for dataset in DATASETS
    }
    assert all(
        samples.kept(dataset) == kept[dataset] and len(kept[dataset]) > 150 for dataset in DATASETS
    )
    source = PuzzleExamples(1, 1.0)
    words = {question for index in range(3000) for question in _questions(source, index)}
    assert len(words) > 5000 and not words & {one for some in kept.values() for one in some}
    assert list(source(3)) == list(PuzzleExamples(1, 1.0)(3)) != list(PuzzleExamples(2, 1.0)(3))


def _questions(source: PuzzleExamples, index: int) -> list[str]:
    return [
        dialogue.messages[1]["content"].partition("Question: ")[2] for dialogue in source(index)
    ]


def test_the_policy_reads_a_letter_a_token_and_all_of_it_fits_the_preset(tokenizer: Any) -> None:
    sampling = load_config("pocket-puzzles", agent="reference_tools").sampling
    source = PuzzleExamples(7, 0.0)
    prompts, replies = [], []
    for dialogue in (one for index in range(300) for one in source(index)):
        *request, (reply, _) = dialogue.pieces()
        prompt = "".join(text for text, _ in request)
        rendered = tokenizer.apply_chat_template(
            dialogue.messages[:-1], tokenize=False, add_generation_prompt=True
        )
        assert (
            prompt
            == rendered
            == prompted(dialogue.messages[1]["content"].partition("Question: ")[2])
        )
        assert tokenizer.encode(prompt) == [
            token for text, _ in request for token in tokenizer.encode(text)
        ]
        prompts.append(len(tokenizer.encode(prompt)))
        replies.append(len(tokenizer.encode(reply)))
    assert (
        max(prompts) <= sampling.max_prompt_tokens and max(replies) <= sampling.max_response_tokens
    )
    assert len(tokenizer.encode("Mississippi")) == len("Mississippi")


@pytest.mark.slow
def test_shipped_data_are_made_again() -> None:
    """The blocks whose hash the manifest has."""
    folder = Path(resolve("pocket-puzzles"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    start_worker(str(folder / "tokenizer.json"))
    source = PuzzleExamples(manifest["seed"], manifest["training"]["hasty"])
    digest = hashlib.sha256()
    for number in range(HASHED_BLOCKS):
        digest.update(make_block(source, number).tokens)
    assert digest.hexdigest() == manifest["training"]["data_sha256"]
    assert manifest["prompts"] == WITHOUT_TOOLS.hash


@pytest.mark.slow
def test_the_shipped_policy_is_right_on_some_and_leaves_room() -> None:
    pytest.importorskip("torch")
    from recipes.finetune.policy import load, share

    policy = load(resolve("pocket-puzzles"))
    for dataset in DATASETS:
        assert 0.2 < share(rewards(policy, dataset, 32)) < 0.8
