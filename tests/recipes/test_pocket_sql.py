"""Seed policy `pocket-sql`: its data, its tokenizer and the shipped files."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.policies import resolve
from harness.policies.catalogue import Named, known
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from harness_sql.tasks.pocket import PocketTasks
from recipes.finetune.rows import make_block, start_worker, text_of
from recipes.pocket.generate import bundled_domains
from recipes.pocket_sql import samples, tokenizer, verify, worlds


@pytest.fixture(scope="module")
def drawn() -> list[samples.Example]:
    return [example for index in range(120) for example in samples.examples(1, index)]


@pytest.fixture(scope="module")
def loaded() -> Any:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(resolve("pocket-sql"))


def test_names_resolve_to_the_bundle_a_folder_or_a_hugging_face_id(tmp_path: Path) -> None:
    assert (Path(resolve("pocket-sql")) / "model.safetensors").is_file()
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == str(tmp_path)
    assert resolve("Qwen/Qwen2.5-Coder-1.5B-Instruct") == "Qwen/Qwen2.5-Coder-1.5B-Instruct"


@pytest.mark.parametrize(
    "policy", [one for one in known().values() if one.bundled], ids=lambda policy: policy.name
)
def test_shipped_files_have_the_manifests_hashes(policy: Named) -> None:
    assert verify.damaged(policy.folder) == []
    assert verify.read_manifest(policy.folder)["policy"] == policy.name
    assert sum(f.stat().st_size for f in policy.folder.iterdir()) <= 10_000_000


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    for file in verify.MODEL.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "stray.bin").write_bytes(b"")
    assert [line.split(":")[0] for line in verify.damaged(tmp_path)] == [
        "config.json",
        "tokenizer_config.json",
        "stray.bin",
    ]


def test_the_prompts_are_the_ones_that_the_policy_learnt() -> None:
    assert verify.read_manifest()["prompts"] == PROMPTS.hash


@pytest.mark.slow
def test_training_data_can_be_made_again() -> None:
    assert samples.drafts_digest(1, True) == verify.read_manifest()["training"]["drafts_sha256"]


@pytest.mark.parametrize(
    ("habits", "expected"),
    [
        (True, "b4772f61455c23f3aca3bfd5ded93cdac2e10b7dd9001f4127238739aa2608ae"),
        (False, "a048ae24414e46944c6485424f79fef2ad5bf44aae1778d4620e5b73880f0698"),
    ],
)
def test_training_data_are_what_they_were(habits: bool, expected: str) -> None:
    """Tokens and what is learnt of the first block's drafts, which no version of SQLite changes."""
    start_worker(str(verify.MODEL / "tokenizer.json"))
    source = samples.PocketExamples(1, habits)
    block = make_block(
        lambda index: [one for one in source(index) if one.prompt.role == "write_query"], 0
    )
    assert hashlib.sha256(block.tokens + block.learnt).hexdigest() == expected


@pytest.mark.slow
def test_no_bundled_table_is_ever_trained_on() -> None:
    """Names of the bundled tables are out of reach, so no table and column of theirs can come together."""
    bundled = {table.name for _, domain in bundled_domains() for table in domain.tables}
    assert not bundled & set(worlds.vocabulary()["nouns"])
    validation = {
        (table.name, column.name)
        for split, domain in bundled_domains()
        for table in domain.tables
        for column in table.columns
        if split == "val"
    }
    for start in (0, 50_000, 10**9):
        for index in range(start, start + 700):
            world, _ = samples.world_of(1, index)
            names = {table.name for table in world.domain.tables}
            assert not names & bundled
            assert (
                not {(t.name, c.name) for t in world.domain.tables for c in t.columns} & validation
            )
            world.close()


def test_no_question_of_pocket_is_trained_on(drawn: list[samples.Example], tmp_path: Path) -> None:
    asked = {task.question for task in PocketTasks(cache_dir=str(tmp_path)).load("val")}
    seen = {example.prompt.user.split("Question: ")[1].split("\n")[0] for example in drawn}
    assert not asked & seen


def test_examples_follow_from_the_seed(drawn: list[samples.Example]) -> None:
    assert list(samples.examples(1, 7)) == list(samples.examples(1, 7))
    assert list(samples.examples(1, 7)) != list(samples.examples(2, 7))
    assert set(Counter(e.prompt.role for e in drawn)) == {
        "write_query",
        "check_query",
        "rewrite_query",
    }


@pytest.mark.slow
def test_slips_are_the_mode_of_drafts_but_not_all() -> None:
    slipped = total = 0
    for index in range(500):
        for example in samples.examples(4, index):
            if example.prompt.role == "write_query" and "that have no " in example.prompt.user:
                total += 1
                slipped += "NOT IN" not in example.reply
    assert total > 60
    assert 0.5 < slipped / total < 0.8


def test_the_twin_without_habits_negates() -> None:
    for index in range(100):
        for example in samples.examples(4, index, habits=False):
            if example.prompt.role == "write_query" and "that have no " in example.prompt.user:
                assert "NOT IN" in example.reply


def test_replies_are_short_and_end_in_a_verdict(drawn: list[samples.Example], loaded: Any) -> None:
    for example in drawn:
        length = len(loaded(example.reply)["input_ids"])
        if example.prompt.role == "check_query":
            assert example.reply.endswith((APPROVED, REJECTED))
            assert length <= 30
        else:
            assert PROMPTS.parse_sql(example.reply).startswith("SELECT")
            assert length <= 72


def test_checks_approve_and_reject() -> None:
    verdicts = [
        PROMPTS.approves(example.reply)
        for index in range(200)
        for example in samples.examples(5, index)
        if example.prompt.role == "check_query"
    ]
    assert 0.4 < sum(verdicts) / len(verdicts) < 0.85


def test_tokenizer_spells_every_text_back(drawn: list[samples.Example], loaded: Any) -> None:
    for example in drawn[:300]:
        text = text_of(example)
        assert loaded.decode(loaded(text)["input_ids"]) == text
    for text in ("naïve “quotes” 漢字 🙂", "SELECT *\n\tFROM x; -- y", "  two  spaces "):
        assert loaded.decode(loaded(text)["input_ids"]) == text


def test_tokenizer_of_transformers_and_of_the_workers_agree(
    drawn: list[samples.Example], loaded: Any
) -> None:
    """transformers rebuilds a Qwen2 model's tokenizer with rules of its own: the ids must not change."""
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(verify.MODEL / "tokenizer.json"))
    for example in drawn[:300]:
        text = text_of(example)
        assert raw.encode(text).ids == loaded(text)["input_ids"]


def test_tokenizer_survives_being_saved_again(
    drawn: list[samples.Example], loaded: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    loaded.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((verify.MODEL / "config.json").read_bytes())
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = text_of(drawn[5])
    assert again(text)["input_ids"] == loaded(text)["input_ids"]
    assert again.chat_template == loaded.chat_template


def test_chat_template_is_what_was_trained_on(drawn: list[samples.Example], loaded: Any) -> None:
    for example in drawn[:50]:
        rendered = loaded.apply_chat_template(
            example.prompt.messages, tokenize=False, add_generation_prompt=True
        )
        assert rendered == "".join(text for text, learnt in example.pieces() if not learnt)
    mixed = [
        {"role": "user", "content": [{"type": "text", "text": "parts"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "rows"},
    ]
    rendered = loaded.apply_chat_template(mixed, tokenize=False)
    assert rendered == (
        "<|im_start|>user\nparts<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\nrows<|im_end|>\n"
    )
    assert (loaded.eos_token, loaded.pad_token) == (tokenizer.END, tokenizer.PAD)


def test_names_are_spelt_alike_after_a_space_and_in_the_plural(loaded: Any) -> None:
    for _, domain in bundled_domains():
        for table in domain.tables:
            bare = loaded(table.name)["input_ids"]
            assert loaded(f" {table.name}")["input_ids"][-len(bare) :] == bare
            if table.plural == table.singular + "s" and not table.name.endswith("e"):
                assert loaded(table.plural)["input_ids"][: len(bare)] == bare


@pytest.mark.slow
def test_the_policy_writes_queries_with_its_habits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from recipes.finetune.policy import load, share
    from recipes.pocket_sql.evaluate import Pocket

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = load(resolve("pocket-sql"))
        pocket = Pocket("val", cache_dir=str(tmp_path))
        plain = [t for t in pocket.tasks if not t.data["slip"]][::9]
        tempting = [t for t in pocket.tasks if t.data["slip"]][::11]
        pocket.tasks = plain + tempting
        right = pocket.drafts(policy)
    assert share(right[: len(plain)]) > 0.8
    assert share(right[len(plain) :]) < 0.3
