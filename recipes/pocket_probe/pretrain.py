"""Trains a small policy for `pocket_probe` from nothing.

`python -m recipes.pocket_probe.pretrain --out DIR [--device cuda] [--minutes M | --steps N] [--seed S]`

The model and the options are those of `recipes.pocket_sql.pretrain`. What it reaches is measured on split `dev`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.environments.sql.environment import database_of
from harness.environments.sql.sandbox import Limits, execute
from harness.tasks.pocket_probe import PocketProbeTasks
from recipes.pocket_probe.samples import ProbeExamples
from recipes.pocket_sql.data import text_of
from recipes.pocket_sql.evaluate import Pocket, Policy, share
from recipes.pocket_sql.pretrain import add_options, fit, main, make_model, save, write_manifest
from recipes.pocket_sql.tokenizer import train

log = logging.getLogger(__name__)

MAX_NEW_TOKENS = 96
IN_PASSING = 96
"""Questions of a measurement in passing."""


class Probe(Pocket):
    """Questions of split `dev`, with what is needed to judge an answer.

    Args:
        limit: Only so many, spread over all databases.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.set = PocketProbeTasks(tempfile.mkdtemp(prefix="pocket-probe-"))  # type: ignore[assignment]
        every = self.set.load("dev")
        self.tasks = [*every[:: max(1, len(every) // (limit or len(every)))]]
        self.gold = {t.id: execute(database_of(t), t.gold, Limits(max_rows=10_000)).rows for t in self.tasks}

    def measure(self, policy: Policy) -> dict[str, float]:
        """Shares of right answers: of one draft and of three turns, greedy, and of one draft at temperature 1."""
        policy.max_new_tokens = MAX_NEW_TOKENS
        return {
            "draft": share(self.drafts(policy)),
            "draft_sampled": share(self.drafts(policy, temperature=1.0)),
            "three_turns": share(self.loop(policy)),
        }


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, out=None, learning_rate=2e-3)
    parser.add_argument("--tokenizer-worlds", type=int, default=3000)
    return parser.parse_args(argv)


def pretrain(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; returns the manifest."""
    import torch

    started = time.perf_counter()
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    source = ProbeExamples(arguments.seed)
    tokenizer = train(_texts(source, arguments.tokenizer_worlds))
    tokenizer.save_pretrained(out)
    log.info("tokenizer: %d tokens, %.0f s", len(tokenizer), time.perf_counter() - started)
    model = make_model(tokenizer).to(arguments.device)
    passing = Probe(min(IN_PASSING, arguments.limit or IN_PASSING))
    progress = fit(model, tokenizer, source, arguments, lambda policy: str(passing.measure(policy)))
    save(model, out)
    measured = Probe(arguments.limit).measure(Policy(model.float(), tokenizer))
    log.info("final: %s", json.dumps(measured))
    return write_manifest(out, arguments, progress, measured, "pocket-probe", "recipes.pocket_probe.pretrain")


def _texts(source: ProbeExamples, worlds: int) -> Iterator[str]:
    """What the tokenizer is trained on: the first calls on many random databases."""
    for index in range(worlds):
        for number, example in enumerate(source(index)):
            if number == 4:
                break
            yield text_of(example)


if __name__ == "__main__":
    sys.exit(main(pretrain, parse_arguments))
