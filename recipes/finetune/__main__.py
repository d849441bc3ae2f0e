"""Makes a policy: fine-tunes pre-trained weights, or trains a small model from nothing, on what should have been said.

`python -m recipes.finetune --on COURSE [--base NAME] [--agents A,B,...] [--until 0.30] [--minutes M] [--device cuda]`

`--on` is a course: `pocket`, `pocket_probe` (random databases), `pocket_split` (members of teams, random databases),
`medical` (transcripts of its tool-calling agents), `pocket_puzzles` (two data sets of reasoning_gym) or `spider` (split
`train_a` in ever new variations). With `--agents`
it is any task set with gold queries: each of these agents plays its questions against a teacher who knows gold, and all
have equal shares; `--preset` and `--set` say, as for `harness train`, what the prompts of the run are like for which
the policy is made.

`--base` is a policy by name, a folder or an id on Hugging Face; without it a small model and its tokenizer are made.
`--until` ends the training at a share of right held-out questions: reinforcement needs room. The policy is kept under
`--name`, where `policy.path` finds it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import platform
import shlex
import shutil
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.config.sections import PolicyConfig
from harness.errors import ConfigError, UserError
from harness.policies import fetched, revision_of
from harness.policies.catalogue import PLAIN, cached_dir, find
from harness.util.parsing import file_hash
from recipes.finetune.course import PRETRAINING, Course
from recipes.finetune.fit import fit
from recipes.finetune.policy import Policy, from_nothing, load
from recipes.pocket_sql.tokenizer import END, START

log = logging.getLogger("recipes.finetune")

COURSES = {
    "pocket": "recipes.pocket_sql.course",
    "pocket_probe": "recipes.pocket_probe.course",
    "spider": "recipes.spider_sql.course",
    "medical": "recipes.medical.course",
    "pocket_split": "recipes.pocket_split.course",
    "pocket_puzzles": "recipes.pocket_puzzles.course",
}
PLAYED = ("medical", "pocket_split")
"""Courses that have a teacher of their own for agents."""
SCAFFOLDS = "recipes.finetune.scaffolds"
OF_AGENTS = ("preset", "set", "split", "held_out", "wrong", "transcripts")
"""Options of `SCAFFOLDS`."""
READ = {"spider": ("set",), **dict.fromkeys(PLAYED, ("transcripts",))}
"""Those of them that courses read, too."""
FINETUNING = {
    **PRETRAINING,
    "learning_rate": 3e-4,
    "minutes": None,
    "steps": 1300,
    "batch_tokens": 32768,
    "blocks_per_group": 10,
    "every": 80,
}
"""The pace with pre-trained weights; without, a course has its own."""
BATCH = 256
"""Prompts decoded at once in a measurement."""
WRONG = 0.3
"""Share of an agent's questions that are played once more, with a wrong draft."""
IN_PASSING = 128
"""Held-out questions of a measurement in passing, spread over all."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, those that depend on the course and the base filled in.

    Raises:
        ConfigError: They do not fit together.
    """
    arguments = _parser().parse_args(argv)
    own = arguments.on in COURSES and (not arguments.agents or arguments.on in PLAYED)
    _check(arguments, own)
    arguments.course = COURSES[arguments.on] if own else SCAFFOLDS
    defaults = importlib.import_module(arguments.course).DEFAULTS
    given = ("steps", "minutes") if arguments.steps or arguments.minutes else ()
    for name, value in (FINETUNING if arguments.base else defaults).items():
        if getattr(arguments, name, None) is None and name not in given:
            setattr(arguments, name, value)
    if arguments.until is not None and arguments.steps and arguments.steps < arguments.every:
        raise ConfigError(
            f"--until {arguments.until} would never be looked at: --every {arguments.every} is more than --steps "
            f"{arguments.steps}"
        )
    arguments.wrong = WRONG if arguments.wrong is None else arguments.wrong
    arguments.habits = not arguments.base if arguments.habits is None else arguments.habits
    if arguments.name is None:
        arguments.name = (
            f"{arguments.on}-{Path(arguments.base).name.lower()}"
            if arguments.base
            else defaults["name"]
        )
    if not PLAIN.fullmatch(arguments.name):
        raise ConfigError(
            f"--name {arguments.name!r}: a policy's name has letters, digits, dots, underscores and hyphens, and "
            "begins with a letter or a digit"
        )
    arguments.out = arguments.out or cached_dir(arguments.name)
    known = find(arguments.name)
    if arguments.out == cached_dir(arguments.name) and known is not None and known.bundled:
        raise ConfigError(f"{arguments.name} is shipped: name another --name, or an --out")
    if arguments.out.exists() and (
        any(arguments.out.iterdir()) if arguments.out.is_dir() else True
    ):
        raise ConfigError(
            f"{arguments.out} is there already: remove it, or name another --name or --out"
        )
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m recipes.finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--on", required=True, help=f"a course ({', '.join(COURSES)}); with --agents a task set")
    add(
        "--base",
        help="pre-trained weights: a name, a folder or an id on Hugging Face; by default from nothing",
    )
    add(
        "--agents",
        type=lambda text: text.split(","),
        help="whose requests are learned, as `harness plugins` has them",
    )
    add("--preset", help="with --agents: the preset of the run that the policy is for")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the task set, as in a run",
    )
    add("--split", help="with --agents: whose questions are learned")
    add("--held-out", help="with --agents: whose questions are measured")
    add(
        "--wrong",
        type=share,
        help=f"with --agents: share of questions also played with a wrong draft ({WRONG})",
    )
    add(
        "--habits",
        action=argparse.BooleanOptionalAction,
        help="bad habits on purpose; by default only from nothing",
    )
    add(
        "--slips",
        type=share,
        help="with --on pocket_split: share of inviting questions that get a slip (0.5)",
    )
    add(
        "--transcripts",
        type=Path,
        help="played transcripts: read from this file, or kept in it where it is not there",
    )
    add("--until", type=share, help="the held-out share that is enough")
    add("--name", help="what the policy is called; by default from --on and --base")
    add("--out", type=Path, help="its folder; by default where `policy.path` finds its name")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=positive, help="training time; the learning rate follows the clock"
    )
    length.add_argument(
        "--steps", type=whole, help="optimizer steps: as many on any machine, which minutes are not"
    )
    add("--seed", type=int, default=1)
    add("--learning-rate", type=positive)
    add("--batch-tokens", type=whole)
    add("--replays", type=int, help="earlier groups repeated after each fresh one")
    add("--blocks-per-group", type=whole)
    add("--every", type=whole, help="steps between measurements")
    add("--workers", type=whole, default=max(1, (os.cpu_count() or 2) - 1))
    add("--limit", type=whole, help="this many questions only (for rehearsals)")
    return parser


def _check(arguments: argparse.Namespace, own: bool) -> None:
    """Refuse what no course of that name reads; `own` says that it is one of `COURSES`."""
    if not arguments.agents and arguments.on not in COURSES:
        raise ConfigError(
            f"--on {arguments.on!r} is no course; there are {', '.join(COURSES)}. Name --agents to learn what agents "
            "are asked about a task set"
        )
    if arguments.slips is not None and arguments.on != "pocket_split":
        raise ConfigError(f"--slips {arguments.slips}: only --on pocket_split has slips")
    for name in OF_AGENTS:
        if (
            own
            and name not in READ.get(arguments.on, ())
            and getattr(arguments, name) not in (None, [])
        ):
            raise ConfigError(
                f"--{name.replace('_', '-')}: the course {arguments.on!r} has no use for it"
            )
    if arguments.agents and len({*arguments.agents}) < len(arguments.agents):
        raise ConfigError(f"--agents {','.join(arguments.agents)}: one is named twice")
    if arguments.transcripts and not arguments.transcripts.absolute().parent.is_dir():
        raise ConfigError(
            f"--transcripts {arguments.transcripts}: there is no folder {arguments.transcripts.parent}"
        )


def whole(text: str) -> int:
    """A type of argument, as the next two are."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def positive(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return float(text)


def share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0 to 1")
    return float(text)


def finetune(arguments: argparse.Namespace, command: str) -> dict[str, Any]:
    """Train, save and measure; returns the manifest. What is half made is removed.

    Raises:
        UserError: The base, the agents, the task set and what is on this machine do not fit together.
    """
    work = arguments.out.with_name(f".{arguments.out.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        return _finetune(arguments, command, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _finetune(arguments: argparse.Namespace, command: str, work: Path) -> dict[str, Any]:
    import torch

    started = time.perf_counter()
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    base = Path(fetched(PolicyConfig(path=arguments.base))) if arguments.base else None
    policy = load(str(base), arguments.device) if base else None
    with importlib.import_module(arguments.course).course(
        arguments, policy and policy.tokenizer
    ) as course:
        log.info("the course is ready, %.0f s", time.perf_counter() - started)
        if policy is None:
            tokenizer = course.small.tokenizer()
            policy = Policy(
                from_nothing(tokenizer, *course.small.architecture).to(arguments.device), tokenizer
            )
        else:
            _write_alike(policy.tokenizer, course, str(base))
        policy.tokenizer.save_pretrained(work)
        policy.batch = BATCH
        parameters = sum(p.numel() for p in policy.model.parameters())
        log.info("%.2f M parameters, %d tokens", parameters / 1e6, len(policy.tokenizer))

        def shares(most: int | None) -> dict[str, float]:
            return {
                name: round(measure(policy, most), 4) for name, measure in course.held_out.items()
            }

        def enough() -> bool:
            found = shares(some)
            log.info("held out: %s", found)
            mean = sum(found[name] for name in course.until) / len(course.until)
            return arguments.until is not None and mean >= arguments.until

        some = min(IN_PASSING, arguments.limit or IN_PASSING)
        measured: dict[str, Any] = {}
        if base:
            measured["before"] = shares(some)
            log.info("before: %s", measured["before"])
        progress = fit(policy.model, work / "tokenizer.json", course.source, arguments, enough)
        measured["held_out"] = shares(arguments.limit)
        measured |= course.report(policy)
        if len(course.until) > 1:
            of = [measured["held_out"][name] for name in course.until]
            measured["apart"] = round(max(of) - min(of), 4)
    log.info("after: %s", measured)
    policy.model.to(torch.bfloat16 if base else torch.float16).save_pretrained(work)
    file = base / "manifest.json" if base else None
    known = json.loads(file.read_text(encoding="utf-8")) if file and file.is_file() else {}
    pedigree = (
        {"policy": arguments.base, "revision": revision_of(base), "sha256": known.get("sha256", {})}
        if base
        else None
    )
    progress |= {"base": pedigree, "parameters": parameters, **course.about}
    licence = known.get("licence", "not stated") if base else "Apache-2.0"
    about = {
        "policy": arguments.name,
        "licence": licence,
        "command": command,
        "prompts": course.prompts,
    }
    manifest = _write_manifest(work, about, arguments, progress, measured)
    if out.exists():
        out.rmdir()
    work.rename(out)
    log.info("%s, %.0f s", out, time.perf_counter() - started)
    return manifest


def _write_alike(tokenizer: Any, course: Course, base: str) -> None:
    """See to it that the base is prompted with what the course's conversations are written in."""
    if course.chat_template is None:
        return
    ids = tokenizer.convert_tokens_to_ids([START, END])
    if tokenizer.unk_token_id in ids or None in ids or tokenizer.eos_token != END:
        raise ConfigError(
            f"{base}: its chat template is not ChatML, which this course is written in: name --agents"
        )
    told = [{"role": role, "content": f"a {role}"} for role in ("system", "user", "assistant")]
    own, theirs = (
        tokenizer.apply_chat_template(told, chat_template=template, tokenize=False)
        for template in (None, course.chat_template)
    )
    if own != theirs or "tools" in course.chat_template:
        tokenizer.chat_template = course.chat_template


def _write_manifest(
    out: Path,
    about: dict[str, Any],
    arguments: argparse.Namespace,
    progress: dict[str, Any],
    measured: dict[str, Any],
) -> dict[str, Any]:
    """`manifest.json`: hashes of the files, and all that is needed to make them again."""
    import tokenizers
    import torch
    import transformers

    files = sorted(path for path in out.iterdir() if path.is_file())
    manifest = {
        **about,
        "settings": {
            k: str(v) if isinstance(v, Path) else v
            for k, v in vars(arguments).items()
            if k != "out"
        },
        "seed": arguments.seed,
        "training": progress,
        "measured": measured,
        "versions": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "hardware": torch.cuda.get_device_name()
        if arguments.device == "cuda"
        else platform.machine(),
        "sha256": {path.name: file_hash(path) for path in files},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def main(argv: Sequence[str] | None = None) -> int:
    """The command: a policy from its arguments, and what it measures on stdout."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "transformers"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        manifest = finetune(
            parse_arguments(given), shlex.join(["python", "-m", "recipes.finetune", *given])
        )
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing is kept but what --transcripts names\n")
        return 130
    sys.stdout.write(json.dumps({k: manifest[k] for k in ("training", "measured")}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
