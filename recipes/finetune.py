"""Fine-tunes pre-trained weights on what the reference agent should have said to the questions of a task set.

`python -m recipes.finetune --base NAME --on spider [--name NAME] [--device cuda] [--until 0.30] [--minutes M]`

`--base` is a policy by name, a folder or an id on Hugging Face whose chat template is ChatML. `--on` names the
questions: `spider` (split `train_a`, in ever new variations; needs `harness data spider`) or `pocket` (random
databases). `--until` ends the training at a share of right drafts on held-out questions: reinforcement needs room. The
policy is kept under `--name`, where `policy.path` finds it.
"""

from __future__ import annotations

import argparse
import json
import logging
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import PolicyConfig
from harness.records import Task
from recipes.pocket_sql.data import Source
from recipes.pocket_sql.evaluate import Pocket, Policy, share
from recipes.pocket_sql.pretrain import add_options, fit, main, write_manifest
from recipes.pocket_sql.samples import PocketExamples
from recipes.pocket_sql.tokenizer import END, START

log = logging.getLogger(__name__)

BATCH = 256
"""Prompts decoded at once in a measurement."""
IN_PASSING = 128
"""Held-out questions of a measurement in passing, spread over all."""


@dataclass(frozen=True)
class Course:
    """What is learned, and how it is measured.

    Attributes:
        source: Makes the conversations.
        held_out: Measures the share of right greedy drafts, by name of what they are of; at most so many questions.
        until: The name of that which `--until` looks at.
        about: For the manifest.
    """

    source: Source
    held_out: Mapping[str, Callable[[Policy, int | None], float]]
    until: str
    about: dict[str, Any]


@contextmanager
def spider(arguments: argparse.Namespace) -> Iterator[Course]:
    """Questions of `train_a` in variations. Held out are databases that it never sees: those of `train_b` and `dev`.

    `--until` looks at questions of `dev` that are not in `dev_500`, so that this sample decides nothing.
    """
    from harness.tasks.spider import SpiderTasks
    from recipes.spider_sql.pretrain import MAX_NEW_TOKENS, SCHEMA, drafts
    from recipes.spider_sql.questions import prepare
    from recipes.spider_sql.samples import SpiderExamples

    tasks = SpiderTasks(arguments.data_dir, **SCHEMA)  # type: ignore[arg-type]
    questions = prepare(tasks.load("train_a"), arguments.workers)

    def of(whole: Sequence[Task]) -> Callable[[Policy, int | None], float]:
        def measure(policy: Policy, most: int | None) -> float:
            policy.max_new_tokens = MAX_NEW_TOKENS
            return share(drafts(policy, tasks, spread(whole, most)))

        return measure

    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "questions.pickle"
        file.write_bytes(pickle.dumps(questions))
        sample = tasks.load("dev_500")
        known = {task.id for task in sample}
        others = [task for task in tasks.load("dev") if task.id not in known]
        held_out = {"train_b": of(tasks.load("train_b")), "dev_others": of(others), "dev_500": of(sample)}
        about = {"questions": len(questions), "schema": SCHEMA}
        yield Course(SpiderExamples(arguments.seed, str(file)), held_out, "dev_others", about)


@contextmanager
def pocket(arguments: argparse.Namespace) -> Iterator[Course]:
    """Random databases, with right drafts alone; held out is the task set's validation."""

    def measure(policy: Policy, most: int | None) -> float:
        return share(Pocket(limit=most).drafts(policy))

    yield Course(PocketExamples(arguments.seed, habits=False), {"pocket": measure}, "pocket", {})


COURSES = {"spider": spider, "pocket": pocket}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    from harness.policies.catalogue import cached_dir

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="pre-trained weights: a name, a folder or an id on Hugging Face")
    parser.add_argument("--on", choices=COURSES, required=True, help="whose questions are learned")
    parser.add_argument("--name", help="what the policy is called; by default from --on and --base")
    parser.add_argument("--until", type=float, help="the share of right held-out drafts that is enough")
    parser.add_argument("--data-dir", help="the prepared Spider folder; else $VERL_SPIDER_DATA_DIR or the cache folder")
    add_options(parser, out=Path(), learning_rate=3e-4, minutes=5.0, replays=0, batch_tokens=32768)
    parser.set_defaults(every_s=20.0, blocks_per_group=10, out=None)
    arguments = parser.parse_args(argv)
    arguments.name = arguments.name or f"{arguments.on}-{Path(arguments.base).name.lower()}"
    arguments.out = arguments.out or cached_dir(arguments.name)
    return arguments


def finetune(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; returns the manifest."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from harness.policies import fetched

    started = time.perf_counter()
    torch.manual_seed(arguments.seed)
    base, out = Path(fetched(PolicyConfig(path=arguments.base))), arguments.out
    if out.exists() and (any(out.iterdir()) if out.is_dir() else True):
        raise SystemExit(f"{out} is there already: remove it, or name another --name or --out")
    tokenizer = AutoTokenizer.from_pretrained(base)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)
    if START not in rendered or END not in rendered:
        raise SystemExit(f"{base}: its chat template is not ChatML, which these conversations are written in")
    work = out.with_name(f".{out.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    arguments.out = work
    tokenizer.save_pretrained(work)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa")
    model = model.to(arguments.device)
    parameters = sum(p.numel() for p in model.parameters())
    log.info("%s: %.1f M parameters, %.0f s", arguments.base, parameters / 1e6, time.perf_counter() - started)
    with COURSES[arguments.on](arguments) as course:
        log.info("questions are ready, %.0f s", time.perf_counter() - started)

        def shares(policy: Policy, most: int | None) -> dict[str, float]:
            policy.batch = BATCH
            return {name: round(measure(policy, most), 4) for name, measure in course.held_out.items()}

        def measure(policy: Policy) -> str | None:
            passing = shares(policy, min(IN_PASSING, arguments.limit or IN_PASSING))
            if arguments.until is None or passing[course.until] < arguments.until:
                return str(passing)
            log.info("held out: %s", passing)
            return None

        before = shares(Policy(model.eval(), tokenizer), min(IN_PASSING, arguments.limit or IN_PASSING))
        log.info("before: %s", before)
        progress = fit(model.train(), tokenizer, course.source, arguments, measure)
        after = shares(Policy(model.eval(), tokenizer), arguments.limit)
    log.info("after: %s", after)
    model.to(torch.bfloat16).save_pretrained(work)
    progress |= {"base": _pedigree(base, arguments.base), "parameters": parameters, **course.about}
    measured = {"drafts_greedy_before": before, "drafts_greedy": after}
    arguments.out = out
    manifest = write_manifest(work, arguments, progress, measured, arguments.name, "recipes.finetune")
    work.rename(out)
    log.info("%s, %.0f s; policy.path: %s", out, time.perf_counter() - started, arguments.name)
    return manifest


def spread(whole: Sequence[Task], most: int | None) -> Sequence[Task]:
    """So many of a list, evenly over all of it."""
    return whole if most is None or most >= len(whole) else [whole[i * len(whole) // most] for i in range(most)]


def _pedigree(folder: Path, named: str) -> dict[str, Any]:
    from harness.policies import revision_of

    file = folder / "manifest.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {"policy": named, "revision": revision_of(folder), "sha256": known.get("sha256", {})}


if __name__ == "__main__":
    sys.exit(main(finetune, parse_arguments))
