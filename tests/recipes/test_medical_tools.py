"""What `medical-tools` is trained from: real transcripts, rendered as servers render them."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness import plugins
from harness.policies import resolve, tool_parser
from harness_policy_server.hermes import for_template, read_calls
from recipes.finetune.play import Transcript, collect
from recipes.finetune.rows import make_block, start_worker, text_of
from recipes.medical import course, samples, teacher
from recipes.medical.generate import bundled
from recipes.medical.samples import Dialogue
from recipes.pocket_sql.tokenizer import END


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[Transcript]:
    """The first tasks, played by agents in processes of their own, two of them with a tool that they define anew."""
    wanted = (
        "autogen_tools_idiomatic",
        "langgraph_tools",
        "openai_agents_tools_idiomatic",
        "reference_tools",
    )
    names = [name for name in wanted if name in plugins.agents_of(course.PROGRAM)]
    return collect({name: course.lessons(name, 0.5, 1, 24) for name in names})


@pytest.mark.slow
def test_all_agents_of_the_program_have_equal_shares(played: list[Transcript]) -> None:
    assert "reference_tools" in {one.agent for one in played}
    shares = {one.agent: [t.task for t in played if t.agent == one.agent] for one in played}
    assert len({tuple(tasks) for tasks in shares.values()}) == 1
    assert {len(tasks) for tasks in shares.values()} == {24}


def test_transcripts_end_in_the_teachers_answer(played: list[Transcript]) -> None:
    items = dict(bundled()[1]["train"])
    for one in played:
        item = items[one.task]
        right = item.slips[one.noted["slip"]][1] if one.noted["slip"] else item.answer
        assert one.messages[-1]["content"].endswith(right)
        assert [tool["function"]["name"] for tool in one.calls[-1].tools] == [teacher.TOOL]
        results = [message["content"] for message in one.messages if message["role"] == "tool"]
        assert len(results) == 1 + one.noted["mended"]
        assert [result.startswith("Error") for result in results] == [True] * one.noted[
            "mended"
        ] + [False]
    assert (
        {bool(one.noted["slip"]) for one in played}
        == {one.noted["mended"] for one in played}
        == {True, False}
    )


@pytest.mark.slow
def test_training_data_are_what_they_were(tmp_path: Path) -> None:
    """Tokens and what is learnt of the first block of two agents, as the recorder and packing before made them."""
    names = ("reference_tools", "langgraph_tools")
    if "langgraph_tools" not in plugins.agents_of(course.PROGRAM):
        pytest.skip("langgraph_tools is not installed")
    found = collect({name: course.lessons(name, 0.64, 1, 24) for name in names})
    file = tmp_path / "dialogues.pickle"
    file.write_bytes(pickle.dumps(list(map(Dialogue.of, found))))
    start_worker(str(Path(resolve("medical-tools")) / "tokenizer.json"))
    block = make_block(samples.MedicalExamples(1, str(file)), 0)
    digest = hashlib.sha256(block.tokens + block.learnt).hexdigest()
    assert digest == "ff80748d40ef52e1054b7a36a31ebcef03b57e45faae081a20d035e6268e19ec"


def test_a_golden_lesson_slips_never_and_a_mend_differs() -> None:
    for _, item in bundled()[1]["train"][:300]:
        assert not teacher.lesson(item, Random(item.question)).slip
        assert item.broken != item.sql


def test_dialogues_read_as_the_template_renders(played: list[Transcript], tokenizer: Any) -> None:
    for one in played:
        whole = tokenizer.apply_chat_template(
            for_template(one.messages), tools=one.calls[-1].tools, tokenize=False
        )
        pieces = Dialogue.of(one).pieces()
        assert "".join(text for text, _ in pieces) == whole.rstrip("\n")
        # In pieces it is the same tokens as in one: what is learnt after is what a server prompts with.
        assert [
            token for text, _ in pieces for token in tokenizer.encode(text)
        ] == tokenizer.encode(whole.rstrip("\n"))
        replies = [text.removesuffix(END) for text, learnt in pieces if learnt]
        assert len(replies) == sum(message["role"] == "assistant" for message in one.messages)
        for reply in replies[:-1]:
            words, calls = read_calls(reply, [1])
            assert [call["function"]["name"] for call in calls] == [teacher.TOOL]
            assert samples.said(
                {
                    "content": words,
                    "tool_calls": for_template([{"tool_calls": calls}])[0]["tool_calls"],
                }
            )


def test_variation_renames_everywhere_and_never_to_a_name_of_validation(
    played: list[Transcript],
) -> None:
    world = bundled()[0]
    rng = Random(1)
    known = {name for part in world.parts.values() for name in part.names}
    for one in played * 5:
        text = json.dumps(samples.varied(Dialogue.of(one), rng).messages, ensure_ascii=False)
        found = {match[0] for match in samples._NAME.finditer(text)}
        assert found and not found & set(world.parts["val"].names)
        assert len(found) == len(
            {m[0] for m in samples._NAME.finditer(json.dumps(one.messages, ensure_ascii=False))}
        )
        assert len(found & known) <= 1


def test_numbers_of_the_answer_are_those_of_the_varied_result(played: list[Transcript]) -> None:
    rng = Random(2)
    for one in played:
        *_, result, answer = samples.varied(Dialogue.of(one), rng).messages
        rows = "\n".join(result["content"].split("\n")[1:])
        assert set(re.findall(r"[\d.]+", answer["content"])) <= set(re.findall(r"[\d.]+", rows)), (
            rows,
            answer,
        )


@pytest.fixture(scope="module")
def tokenizer(played: list[Transcript]) -> Any:
    pytest.importorskip("transformers")
    from recipes.medical.course import Play
    from recipes.pocket_sql.tokenizer import train

    rng = Random(3)
    texts = [text_of(samples.varied(Dialogue.of(one), rng)) for one in played * 10]
    return train(
        texts, 1280, Play(1).phrases(list(map(Dialogue.of, played))), samples.CHAT_TEMPLATE
    )


def test_prompts_fit_the_preset_and_every_syllable_is_one_token(
    played: list[Transcript], tokenizer: Any
) -> None:
    lengths = [len(tokenizer.encode(text_of(Dialogue.of(one)))) for one in played]
    assert max(lengths) < 512
    for one in played:
        whole = text_of(Dialogue.of(one))
        assert tokenizer.decode(tokenizer.encode(whole)) == whole
    assert len({len(tokenizer.encode(syllable)) for syllable in samples.SYLLABLES}) == 1


def test_the_template_says_hermes(tokenizer: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer.save_pretrained(tmp_path)
    assert tool_parser(str(tmp_path)) == "hermes"


def test_a_policy_that_answers_as_the_teacher_has_the_whole_reward() -> None:
    pytest.importorskip("transformers")
    from recipes.medical.course import Play

    play = Play(6)
    items = {item.question: item for _, item in bundled()[1]["val"]}

    class Teacher:
        max_new_tokens = 0

        def go_on(self, texts: list[str], temperature: float) -> list[str]:
            replies = []
            for text in texts:
                item = next(
                    item
                    for question, item in items.items()
                    if f"Question: {question}<|im_end|>" in text
                )
                replies.append(item.answer if "<tool_response>" in text else call(item.sql))
            return replies

    def call(sql: str) -> str:
        return samples.said(
            {"tool_calls": [{"function": {"name": teacher.TOOL, "arguments": {"sql": sql}}}]}
        )

    assert play.rewards(Teacher()) == [1.0] * 6  # type: ignore[arg-type]
