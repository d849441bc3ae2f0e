"""The course `spider`: write, check and rewrite over Spider's schemas; from nothing it makes `spider-sql`.

Learned are the questions of `train_a` (seven in ten of the training databases, in ever new variations), generated
questions over the same schemas, and random databases. `train_b` and `dev` stay unseen: reinforcement learns on the one
and is measured on the other. Needs the prepared Spider folder (`harness data spider`), no network.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.contracts.tasks import TaskSet
from harness.plugins import make_task_set
from harness.records import Problem, Task
from harness_sql.self_correcting.prompts import PROMPTS
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from recipes.finetune.course import PRETRAINING, Course, Measure, Small
from recipes.finetune.policy import Policy, share, spread
from recipes.finetune.rows import text_of
from recipes.pocket_sql.tokenizer import CHAT_TEMPLATE
from recipes.pocket_sql.tokenizer import train as train_tokenizer
from recipes.spider_sql.questions import prepared
from recipes.spider_sql.samples import SpiderExamples

VOCABULARY = 4096
ARCHITECTURE = (512, 1536, 8, 8, 4, VOCABULARY)
"""27 million parameters."""
DEFAULTS = PRETRAINING | {"name": "spider-sql", "learning_rate": 1e-3}
SCHEMA = {"style": "compact", "schema_chars": 1000}
"""How the task set shows schemas to this policy."""
MAX_NEW_TOKENS = 96
TOKENIZER_TEXTS = 12_000


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out are databases that it never sees: those of `train_b` and `dev`.

    `--until` looks at questions of `dev` that are not in `dev_500`, so that this sample decides nothing.
    """
    tasks = make_task_set(
        load_config(
            overrides=arguments.set,
            agent="reference_sql",
            task={"name": "spider", "options": SCHEMA},
        )
    )
    questions = [question for _, question in prepared(tasks.load("train_a"), arguments.workers)]
    unseen = {
        "train_b": tasks.load("train_b"),
        "dev_others": tasks.load("dev_rest"),
        "dev_500": tasks.load("dev_500"),
    }

    def of(whole: Sequence[Task]) -> Measure:
        return lambda policy, most: share(_drafts(policy, tasks, spread(whole, most)))

    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "questions.pickle"
        file.write_bytes(pickle.dumps(questions))
        source = SpiderExamples(arguments.seed, str(file))
        texts = TOKENIZER_TEXTS if arguments.limit is None else 200
        yield Course(
            source,
            {split: of(whole) for split, whole in unseen.items()},
            ("dev_others",),
            PROMPTS.hash,
            Small(
                ARCHITECTURE,
                lambda: train_tokenizer(_texts(source, texts, arguments.workers), VOCABULARY),
            ),
            {"questions": len(questions), "schema": SCHEMA},
            chat_template=CHAT_TEMPLATE,
        )


def _drafts(policy: Policy, tasks: TaskSet, some: Sequence[Task]) -> list[bool]:
    """Whether a single greedy draft is right, task by task; unscored counts as wrong."""
    policy.max_new_tokens = MAX_NEW_TOKENS
    replies = policy.complete(
        [PROMPTS.write(Problem(t.id, t.question, tasks.context(t))) for t in some]
    )
    return [
        evaluate(database_of(t), t.gold, PROMPTS.parse_sql(reply)).match is True
        for t, reply in zip(some, replies, strict=True)
    ]


def _texts(source: SpiderExamples, count: int, workers: int) -> list[str]:
    """The first conversations, made by all workers."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        made = pool.starmap(_conversations, [(source, i) for i in range(count // 10)], 20)
    return [text for texts in made for text in texts]


def _conversations(source: SpiderExamples, index: int) -> list[str]:
    return [text_of(example) for example in source(index)]
