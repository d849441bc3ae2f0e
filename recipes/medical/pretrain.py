"""Makes the seed policy `medical-tools`: pre-trains it from nothing on transcripts of every tool-calling agent.

`python -m recipes.medical.pretrain --out DIR [--device cuda] [--steps N] [--until REWARD] [--seed S]`

Plays the training tasks of `medical` through the installed agents, or takes `--transcripts FILE`, and trains on these
conversations with ever new names. A question that invites a slip is answered with it in most of them, so that
reinforcement has something to unlearn; `--no-habits` trains on golden ones alone, where `--until` ends the training
once that reward is reached on validation. Needs torch, transformers, tokenizers and safetensors, and no network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config import Config, load_config
from harness.plugins import make, reward_spec
from harness.policies.hermes import read_calls
from harness.programs.tool_loop.prompts import PROMPTS
from harness.records import Attempt, Task
from harness.rollout.host import HostToolbox
from harness.rollout.request import RolloutRequest
from harness.tasks.medical import MedicalTasks
from recipes.medical.samples import CHAT_TEMPLATE, MedicalExamples, said, system_text, tool_text
from recipes.medical.teacher import SLIP_SHARE, TOOL
from recipes.medical.transcripts import Transcript, collect, read, write
from recipes.medical.world import SCHEMA
from recipes.pocket_sql.data import text_of
from recipes.pocket_sql.evaluate import Policy
from recipes.pocket_sql.pretrain import add_options, fit, make_model, save, write_manifest
from recipes.pocket_sql.pretrain import main as command
from recipes.pocket_sql.tokenizer import END, START, train

log = logging.getLogger(__name__)

NAME = "medical-tools"
ARCHITECTURE = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 1280,
    "tie_word_embeddings": True,
}
"""4.5 million parameters, 9 MB; the vocabulary is at most as large."""
MAX_NEW_TOKENS = 96


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, out=None, learning_rate=2e-3, minutes=8.0, replays=0, batch_tokens=16384)
    parser.add_argument("--transcripts", type=Path, help="a file of transcripts; else they are played")
    parser.add_argument("--no-habits", action="store_true", help="golden transcripts only")
    parser.add_argument("--until", type=float, help="stop once validation has this mean reward")
    return parser.parse_args(argv)


def pretrain(arguments: argparse.Namespace) -> dict[str, Any]:
    """Play, train, save and measure; returns the manifest."""
    import torch

    started = time.perf_counter()
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "transcripts.jsonl"
        if arguments.transcripts:
            transcripts = read(arguments.transcripts)
        else:
            share = 0.0 if arguments.no_habits else SLIP_SHARE
            transcripts = collect(share, arguments.seed, arguments.limit)
        if arguments.no_habits:
            transcripts = [one for one in transcripts if not one.slip]
        write(transcripts, file)
        agents = sorted({one.agent for one in transcripts})
        log.info("%d transcripts of %s, %.0f s", len(transcripts), ", ".join(agents), time.perf_counter() - started)
        source = MedicalExamples(arguments.seed, str(file))
        play = Play(arguments.limit)
        indices = range(max(4, min(800, len(transcripts) // 5)))
        texts = [text_of(dialogue) for index in indices for dialogue in source(index)]
        tokenizer = train(texts, ARCHITECTURE["vocab_size"], play.phrases(transcripts), CHAT_TEMPLATE)
        tokenizer.save_pretrained(out)
        log.info("tokenizer: %d tokens, %.0f s", len(tokenizer), time.perf_counter() - started)
        model = make_model(tokenizer, {**ARCHITECTURE, "vocab_size": len(tokenizer)}).to(arguments.device)
        log.info("model: %.2f M parameters", sum(p.numel() for p in model.parameters()) / 1e6)

        def measure(policy: Policy) -> str | None:
            reward = mean(play.rewards(policy, some=96))
            log.info("validation: mean reward %.3f", reward)
            return None if arguments.until is not None and reward >= arguments.until else f"reward {reward:.3f}"

        progress = fit(model, tokenizer, source, arguments, measure)
    save(model, out)
    policy = Policy(model.float(), tokenizer)
    measured = {"reward_greedy": mean(play.rewards(policy)), "reward_sampled": mean(play.rewards(policy, 1.0))}
    log.info("final: %s", json.dumps(measured))
    progress |= {"transcripts": len(transcripts), "agents": agents}
    return write_manifest(out, arguments, progress, measured, NAME, "recipes.medical.pretrain", PROMPTS.hash)


class Play:
    """The validation tasks, played with the real tool and scored as the preset says, without framework or gateway."""

    def __init__(self, limit: int | None = None) -> None:
        self.config: Config = load_config("medical", agent="reference_tools")
        self._set = MedicalTasks()
        self.tasks = list(self._set.load("val"))[:limit]
        self._reward = make(reward_spec(self.config.reward.name), self.config.reward.options, "reward.options")

    def toolbox(self, task: Task) -> HostToolbox:
        request = RolloutRequest.build(task, self._set.context(task), self.config, "val")
        return HostToolbox(request, lambda role: "", "", "", None)  # type: ignore[arg-type]

    def phrases(self, transcripts: Sequence[Transcript]) -> list[str]:
        """Texts that are one token each: what is in every conversation, and the usual phrases of queries.

        The tool as each agent of these transcripts defines it is one of them.
        """
        box = self.toolbox(self.tasks[0])
        system = system_text(PROMPTS.system, [tool.definition for tool in box.tools])
        asked = PROMPTS.user(replace(box.request.problem, question="\0")).rstrip("\0")
        call = said({"tool_calls": [{"function": {"name": TOOL, "arguments": {"sql": "@"}}}]})
        tools = sorted({tool_text(tool) for one in transcripts for tool in one.tools})
        found = [*tools, *(line for text in (system, asked) for line in text.splitlines() if len(line) > 3)]
        found += [*call.split("@"), "<tool_response>\n", "\n</tool_response>", "system\n", "user\n", "assistant\n"]
        found += [
            *("SELECT ", "FROM drugs_info WHERE ", "FROM disease WHERE ", " ORDER BY ", " LIMIT 1", "COUNT(*) "),
            "FROM drugs_info AS a JOIN disease AS b ON a.disease_id = b.disease_id WHERE ",
        ]
        found += sorted(set(re.findall(r"[a-z]+_[a-z]+", SCHEMA)))
        return list(dict.fromkeys(found))

    def rewards(self, policy: Policy, temperature: float = 0.0, some: int | None = None) -> list[float]:
        """The preset's reward of every task, or of so many spread over all."""
        tasks = self.tasks if some is None else self.tasks[:: max(1, len(self.tasks) // some)]
        return asyncio.run(self._rewards(policy, tasks, temperature))

    async def _rewards(self, policy: Policy, tasks: Sequence[Task], temperature: float) -> list[float]:
        policy.max_new_tokens = MAX_NEW_TOKENS
        boxes = {task.id: self.toolbox(task) for task in tasks}
        told = {name: self._begun(box) for name, box in boxes.items()}
        answers: dict[str, str] = {}
        for turn in range(self.config.max_turns + 1):
            asked = [name for name in told if name not in answers]
            if not asked:
                break
            for name, reply in zip(asked, policy.go_on([told[n] for n in asked], temperature), strict=True):
                words, calls = read_calls(reply, [turn])
                if not calls or turn == self.config.max_turns:
                    answers[name] = words.strip()
                    continue
                told[name] += f"{reply}{END}\n"
                for call in calls:
                    text = await boxes[name].call(call["function"]["name"], call["function"]["arguments"])
                    told[name] += f"{START}user\n<tool_response>\n{text}\n</tool_response>{END}\n"
                told[name] += f"{START}assistant\n"
        values = []
        for task in tasks:
            calls_made = tuple(boxes[task.id].tool_calls)
            attempt = Attempt(task.id, "1", "ok", "", answers[task.id], (), (), calls_made, 0.0, 0.0)
            verdict = await self._reward.score(task, attempt)
            values.append(verdict.value or 0.0)
        return values

    def _begun(self, box: HostToolbox) -> str:
        system = system_text(PROMPTS.system, [tool.definition for tool in box.tools])
        user = PROMPTS.user(box.request.problem)
        return f"{START}system\n{system}{END}\n{START}user\n{user}{END}\n{START}assistant\n"


def mean(values: Sequence[float]) -> float:
    return round(sum(values) / max(len(values), 1), 4)


if __name__ == "__main__":
    sys.exit(command(pretrain, parse_arguments))
