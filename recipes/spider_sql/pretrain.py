"""Makes the seed policy `spider-sql`: pre-trains it from nothing on Spider's training questions.

`python -m recipes.spider_sql.pretrain [--out DIR] [--device cuda] [--minutes M | --steps N] [--seed S]`

Trained on split `train_a` of task set `spider` (seven in ten of the training databases, in ever new variations),
on generated questions over the same schemas, and on random databases. `train_b` and `dev` stay unseen: reinforcement
learns on the one and is measured on the other. Needs the prepared Spider folder (`harness data spider`), no network.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.environments.sql.environment import database_of
from harness.environments.sql.evaluator import evaluate
from harness.programs.self_correcting_sql.prompts import PROMPTS
from harness.records import Problem, Task
from harness.tasks.spider import SpiderTasks
from recipes.pocket_sql.data import text_of
from recipes.pocket_sql.evaluate import Policy, share
from recipes.pocket_sql.pretrain import add_options, fit, main, make_model, save, write_manifest
from recipes.pocket_sql.tokenizer import train as train_tokenizer
from recipes.spider_sql.questions import prepare
from recipes.spider_sql.samples import SpiderExamples

log = logging.getLogger(__name__)

ARCHITECTURE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "vocab_size": 4096,
    "tie_word_embeddings": True,
}
"""27 million parameters."""

SCHEMA = {"style": "compact", "schema_chars": 1000}
"""How the task set shows schemas to this policy."""

MAX_NEW_TOKENS = 96


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    from harness.policies.catalogue import cached_dir

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="the prepared Spider folder; else $VERL_SPIDER_DATA_DIR or the cache folder")
    parser.add_argument("--tokenizer-texts", type=int, default=12_000)
    parser.add_argument("--layers", type=int, default=ARCHITECTURE["num_hidden_layers"])
    add_options(parser, out=cached_dir("spider-sql"), learning_rate=1e-3, minutes=6.0, replays=0)
    return parser.parse_args(argv)


def pretrain(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; returns the manifest."""
    import torch

    started = time.perf_counter()
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    tasks = SpiderTasks(arguments.data_dir, **SCHEMA)  # type: ignore[arg-type]
    questions = prepare(tasks.load("train_a"), arguments.workers)
    log.info("%d questions, %.0f s", len(questions), time.perf_counter() - started)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "questions.pickle"
        file.write_bytes(pickle.dumps(questions))
        source = SpiderExamples(arguments.seed, str(file))
        tokenizer = train_tokenizer(_texts(source, arguments), ARCHITECTURE["vocab_size"])
        tokenizer.save_pretrained(out)
        log.info("tokenizer: %d tokens, %.0f s", len(tokenizer), time.perf_counter() - started)
        model = make_model(tokenizer, {**ARCHITECTURE, "num_hidden_layers": arguments.layers}).to(arguments.device)
        log.info("model: %.2f M parameters", sum(p.numel() for p in model.parameters()) / 1e6)
        unseen = {split: tasks.load(split) for split in ("train_b", "dev")}
        held_out = {split: whole[:: max(1, len(whole) // 128)][: arguments.limit] for split, whole in unseen.items()}

        def measure(policy: Policy) -> str:
            policy.max_new_tokens = MAX_NEW_TOKENS
            return "  ".join(f"{split} {share(drafts(policy, tasks, some)):.3f}" for split, some in held_out.items())

        progress = fit(model, tokenizer, source, arguments, measure)
    save(model, out)
    policy = Policy(model.float(), tokenizer, max_new_tokens=MAX_NEW_TOKENS)
    measured = {}
    for split, whole in unseen.items():
        measured[f"{split}_draft_greedy"] = share(drafts(policy, tasks, whole[: arguments.limit]))
    log.info("final: %s", json.dumps(measured))
    progress["questions"] = len(questions)
    return write_manifest(out, arguments, progress, measured, "spider-sql", "recipes.spider_sql.pretrain")


def drafts(policy: Policy, tasks: SpiderTasks, some: Sequence[Task], temperature: float = 0.0) -> list[bool]:
    """Whether a single draft is right, task by task; unscored counts as wrong."""
    prompts = [PROMPTS.write(Problem(t.id, t.question, tasks.context(t))) for t in some]
    replies = policy.complete(prompts, temperature)
    return [
        evaluate(database_of(t), t.gold, PROMPTS.parse_sql(reply)).match is True
        for t, reply in zip(some, replies, strict=True)
    ]


def _texts(source: SpiderExamples, arguments: argparse.Namespace) -> list[str]:
    """The first conversations, made by all workers."""
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        made = pool.starmap(_conversations, [(source, i) for i in range(arguments.tokenizer_texts // 10)], 20)
    return [text for texts in made for text in texts]


def _conversations(source: SpiderExamples, index: int) -> list[str]:
    return [text_of(example) for example in source(index)]


if __name__ == "__main__":
    sys.exit(main(pretrain, parse_arguments))
