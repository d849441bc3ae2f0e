"""Measure how often a comparison calls trainings different that differ only in seed: a real A/A.

    python benchmarks/a_a.py train FILE [--trainings 60]      # appends what is missing; can resume
    python benchmarks/a_a.py judge FILE

`train` makes short trainings of the bundled policy `pocket-sql` on the bundled task set `pocket`,
on one processor core. A training is GRPO in one process: `STEPS` steps of `BATCH` tasks, `GROUP`
sampled first drafts each, rewarded by execution accuracy, one AdamW update a step; then every
second validation question is answered greedily. The seed draws tasks and samples. Prompts,
evaluator and the policy's decoder are those of `harness train`; the trainer is not verl, and no
framework and no second call take part. A row of FILE is a training: seed, accuracy and the verdict
on every question.

`judge` makes pairs of the existing trainings, in order of seeds: 30 of 60, which share no training.
It tests them as `harness compare` does: every pair alone, and disjoint studies of several pairs. No
two arms differ, so every `different` is a false alarm.
"""

from __future__ import annotations

import argparse
import csv
import queue
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from harness.contracts.tasks import TaskSet
    from harness.records import Task

POLICY, TASK_SET = "pocket-sql", "pocket"
STEPS, BATCH, GROUP = 3, 4, 4
LEARNING_RATE = 5e-4
MAX_NEW_TOKENS, MAX_LENGTH = 64, 512
STUDIES = (1, 3, 5, 10, 15, 30)
"""Pairs of a study, which are its seeds."""
LEVEL = 0.05
HEADS = ("seed", "accuracy", "right")


class Trainings:
    """Shared by all trainings: questions, tokenizer and the initial policy."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from harness.config import load_config
        from harness.plugins import make_task_set
        from harness.policies import resolve
        from harness_policy_server.decoder import Decoder

        torch.set_num_threads(1)
        folder = resolve(POLICY)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        # The decoder replaces parts of a model, so it has its own, with weights copied before use.
        served: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.decoder = Decoder(served.eval(), 64, MAX_LENGTH, {self.tokenizer.eos_token_id})
        self.first = {name: one.clone() for name, one in self.model.state_dict().items()}
        config = load_config("cpu", None, [f"policy.path={POLICY}", f"task.name={TASK_SET}"])
        self.task_set = make_task_set(config)
        self.train = self.task_set.load("train")
        self.validation = questions_of(self.task_set)

    def run(self, seed: int) -> list[int]:
        """Train from the first policy with a seed; return 1 or 0 for every validation question."""
        import torch

        self.model.load_state_dict(self.first)
        self.model.train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        order = random.Random(seed).sample(range(len(self.train)), STEPS * BATCH)
        for step in range(STEPS):
            tasks = [self.train[index] for index in order[step * BATCH : (step + 1) * BATCH]]
            self._update(tasks, optimizer, seed * STEPS + step)
        prompts = [self._prompt(task) for task in self.validation]
        replies = self._generate(prompts, 0.0, 0)
        return [
            int(self._right(task, reply))
            for task, reply in zip(self.validation, replies, strict=True)
        ]

    def _update(self, tasks: Sequence[Task], optimizer: Any, draw: int) -> None:
        """Take one GRPO step: sample, reward, and update towards the best samples of a group."""
        import torch

        prompts = [self._prompt(task) for task in tasks for _ in range(GROUP)]
        replies = self._generate(prompts, 1.0, draw)
        repeated = [task for task in tasks for _ in range(GROUP)]
        rewards = torch.tensor(
            [float(self._right(task, reply)) for task, reply in zip(repeated, replies, strict=True)]
        ).view(len(tasks), GROUP)
        spread = rewards.std(dim=1, keepdim=True) + 1e-6
        advantages = ((rewards - rewards.mean(dim=1, keepdim=True)) / spread).flatten()
        taught = [index for index, advantage in enumerate(advantages) if advantage != 0]
        if not taught:
            return
        rows = [prompts[index] + replies[index] for index in taught]
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        is_reply = torch.zeros(len(rows), longest)
        attended = torch.zeros(len(rows), longest, dtype=torch.long)
        for place, index in enumerate(taught):
            length = len(rows[place])
            ids[place, :length] = torch.tensor(rows[place])
            attended[place, :length] = 1
            is_reply[place, len(prompts[index]) : length] = 1.0
        logits = self.model(input_ids=ids, attention_mask=attended).logits[:, :-1]
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.gather(2, ids[:, 1:, None]).squeeze(2)
        weights = is_reply[:, 1:] * advantages[taught][:, None]
        loss = -(chosen * weights).sum() / is_reply.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        optimizer.step()

    def _generate(
        self, prompts: Sequence[list[int]], temperature: float, draw: int
    ) -> list[list[int]]:
        """Return the token ids of one reply to each prompt; `draw` seeds the sampling."""
        from harness_policy_server.decoder import Generation

        self.decoder.load_weights(dict(self.model.named_parameters()))
        ended: queue.SimpleQueue[Generation] = queue.SimpleQueue()
        asked = [
            Generation(
                prompt, MAX_NEW_TOKENS, temperature, seed=draw * 100_000 + index, done=ended.put
            )
            for index, prompt in enumerate(prompts)
        ]
        for one in asked:
            self.decoder.submit(one)
        for _ in asked:
            if error := ended.get().error:
                raise error
        return [one.token_ids for one in asked]

    def _prompt(self, task: Task) -> list[int]:
        from harness.records import Problem
        from harness_sql.self_correcting.prompts import PROMPTS

        problem = Problem(task.id, task.question, self.task_set.context(task))
        messages = PROMPTS.write(problem).messages
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return ids

    def _right(self, task: Task, reply: Sequence[int]) -> bool:
        from harness_sql.self_correcting.prompts import PROMPTS
        from harness_sql.sqlite.environment import database_of
        from harness_sql.sqlite.evaluator import evaluate

        text = self.tokenizer.decode(reply, skip_special_tokens=True)
        return evaluate(database_of(task), task.gold, PROMPTS.parse_sql(text)).match is True


def questions_of(task_set: TaskSet) -> list[Task]:
    """Return every second validation question: 120, of all six databases."""
    return list(task_set.load("val"))[::2]


def train(file: Path, seeds: range) -> None:
    """Append the trainings with these seeds that a file lacks."""
    done = {row["seed"] for row in _read(file)} if file.is_file() else set()
    trainings = Trainings()
    file.parent.mkdir(parents=True, exist_ok=True)
    if not done:
        file.write_text(",".join(HEADS) + "\n", encoding="utf-8")
    for seed in seeds:
        if str(seed) in done:
            continue
        right = trainings.run(seed)
        accuracy = sum(right) / len(right)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{seed},{accuracy:.4f},{''.join(map(str, right))}\n")
        print(f"seed {seed}: {100 * accuracy:.1f} %", flush=True)


def judge(file: Path) -> list[list[str]]:
    """Return a row for every size of study: pairs of each, studies, and the differences found."""
    import polars as pl

    from harness.compare.estimates import crossed_mean

    differences = _differences(file)
    pairs = differences["seed"].n_unique()
    rows = []
    for size in STUDIES:
        studies = pairs // size
        tests = []
        for number in range(studies):
            chosen = pl.col("seed").is_between(number * size, (number + 1) * size - 1)
            test = crossed_mean(differences.filter(chosen))
            assert test is not None, "every pair has answers"
            tests.append(test)
        alarms = sum(test.p_difference() < LEVEL for test in tests)
        covered = sum(test.low <= 0 <= test.high for test in tests)
        if studies:
            rows.append([str(size), str(studies), str(alarms), f"{covered} of {studies}"])
    return rows


def spread(file: Path) -> str:
    """Return a sentence on how far trainings and pairs lie apart."""
    import statistics

    accuracies = [100 * float(row["accuracy"]) for row in _read(file)]
    pairs = len(accuracies) // 2
    apart = [accuracies[2 * pair] - accuracies[2 * pair + 1] for pair in range(pairs)]
    return (
        f"{len(accuracies)} trainings end at {min(accuracies):.1f} to {max(accuracies):.1f} %, "
        f"mean {statistics.mean(accuracies):.1f} %, "
        f"standard deviation {statistics.stdev(accuracies):.1f} points; the two of a pair lie "
        f"{statistics.mean(map(abs, apart)):.1f} points apart on average, "
        f"{max(map(abs, apart)):.1f} at most."
    )


def _differences(file: Path) -> pl.DataFrame:
    """Return each pair's differences per question; the pair takes the place of the seed."""
    import polars as pl

    from harness.config import load_config
    from harness.plugins import make_task_set

    trainings = _read(file)
    tasks = questions_of(make_task_set(load_config("cpu", None, [f"task.name={TASK_SET}"])))
    rows = []
    for pair in range(len(trainings) // 2):
        one, other = trainings[2 * pair], trainings[2 * pair + 1]
        for place, task in enumerate(tasks):
            value = float(int(one["right"][place]) - int(other["right"][place]))
            row = {"seed": pair, "cluster": task.cluster, "task_id": task.id, "value": value}
            rows.append(row)
    return pl.DataFrame(rows)


def _read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file, by seed."""
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    return sorted(rows, key=lambda row: int(row["seed"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "judge"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--trainings", type=int, default=60)
    parser.add_argument(
        "--first", type=int, default=0, help="the first seed, for several processes"
    )
    options = parser.parse_args()
    if options.what == "train":
        train(options.file, range(options.first, options.trainings))
        return
    print("| seeds of a study | studies | different | intervals that hold 0 |")
    print("|---:|---:|---:|---:|")
    for row in judge(options.file):
        print(f"| {' | '.join(row)} |")
    print(f"\n{spread(options.file)}")


if __name__ == "__main__":
    main()
