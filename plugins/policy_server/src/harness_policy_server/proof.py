"""Verify that an exported folder answers as the trained policy: greedy answers, token by token.

The trained policy comes from its trainer in fp32 with separate adapters, independent of the export
(verl's merger, the merge of adapters, bf16). `python -m harness_policy_server.proof FOLDER` is the vLLM
side, in a process of its own so that its memory is free afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from harness.config import resolve_device
from harness.errors import EnvironmentProblem, RunFailed, UserError, how_to_install, last_line
from harness.runs.folder import RunFolder

Engine = Literal["transformers", "vllm"]

NEAR_TIE = 0.05
"""Nats. If the trained policy, in fp32 or bf16, prefers its own token by at most this, rounding
explains another token."""


def choose_engine(engine: Engine | None) -> Engine:
    """Return the requested engine; by default vLLM where it is installed and there is a GPU.

    Raises:
        EnvironmentProblem: vLLM is requested and cannot run here.
    """
    able = find_spec("vllm") is not None and resolve_device("auto") == "cuda"
    if engine == "vllm" and not able:
        raise EnvironmentProblem(
            f"--engine vllm needs a CUDA device and vLLM: {how_to_install('gpu')}"
        )
    return engine or ("vllm" if able else "transformers")


class Difference(TypedDict):
    """The first difference between the exported policy's answer and the trained one's."""

    prompt: Annotated[int, "which, from 0"]
    place: Annotated[int, "token of the answer, from 0"]
    trained: Annotated[int, "id of the trained policy's token there"]
    exported: Annotated[int, "id of the other's"]
    gap_nats: Annotated[float, "by how much the trained policy prefers its own, in fp32"]
    gap_bf16_nats: NotRequired[Annotated[float, "the same in bf16"]]


class Proof(TypedDict):
    """Result of comparing greedy answers; a part of `export.json`."""

    engine: Engine
    prompts: Annotated[int, "how many were answered"]
    identical: Annotated[float, "share of answers without a difference"]
    near_tie_nats: Annotated[float, "gaps up to here are rounding's"]
    differences: list[Difference]


def recorded_prompts(folder: RunFolder, count: int) -> list[list[int]]:
    """Return the token ids of up to `count` validation prompts, spread over all of them.

    Raises:
        UserError: The run recorded none.
    """
    import pyarrow.parquet as pq

    path = folder.path / "transitions.parquet"
    columns = ["phase", "prompt_ids"]
    rows = pq.read_table(path, columns=columns).to_pylist() if path.is_file() else []
    # Every validation sends the same prompts; a dictionary holds each once, in the order of rows.
    distinct: dict[tuple[int, ...], None] = {}
    for row in rows:
        if row["phase"] == "val":
            distinct[tuple(row["prompt_ids"])] = None
    prompts = list(distinct)
    if not prompts:
        raise UserError(
            f"{folder.path} has no recorded validation prompts: "
            "--verify needs rollout.keep_transitions"
        )
    count = min(count, len(prompts))
    return [list(prompts[index * len(prompts) // count]) for index in range(count)]


def compare_answers(
    trained: Any,
    exported: Path,
    prompts: Sequence[Sequence[int]],
    limit: int,
    engine: Engine,
    memory: float,
) -> Proof:
    """Compare the greedy answers of an exported folder with those of the trained policy.

    Args:
        trained: The model as it was trained, in fp32, on the CPU.
        prompts: Token ids.
        limit: Most tokens of an answer.
        memory: Share of a GPU's memory that vLLM may take.
    """
    import torch

    job = {"prompts": [list(ids) for ids in prompts], "limit": limit, "memory": memory}
    # vLLM first: once this process uses the GPU, vLLM would not get its share of the memory.
    answers = _vllm(exported, job) if engine == "vllm" else None
    device = resolve_device("auto")
    trained = trained.to(device)
    stops = _stops(exported)
    if answers is None:
        answers = _greedy(_load(exported).to(device), prompts, limit, stops)
    trained_answers = _greedy(trained, prompts, limit, stops)
    differences: list[Difference] = []
    for index, (prompt, trained_answer, answer) in enumerate(
        zip(prompts, trained_answers, answers, strict=True)
    ):
        expected, got = _to_stop(trained_answer, stops), _to_stop(answer, stops)
        if expected == got:
            continue
        place = _first_difference(expected, got)
        gap = _gap(trained, [*prompt, *expected[:place]], expected[place], got[place])
        differences.append(
            {
                "prompt": index,
                "place": place,
                "trained": expected[place],
                "exported": got[place],
                "gap_nats": gap,
            }
        )
    trained.to(torch.bfloat16)  # like the folder, to measure the effect of rounding alone
    for difference in differences:
        index, place = difference["prompt"], difference["place"]
        prefix = [*prompts[index], *_to_stop(answers[index], stops)[:place]]
        difference["gap_bf16_nats"] = _gap(
            trained, prefix, difference["trained"], difference["exported"]
        )
    return {
        "engine": engine,
        "prompts": len(prompts),
        "identical": round(1 - len(differences) / len(prompts), 4),
        "near_tie_nats": NEAR_TIE,
        "differences": differences,
    }


def _first_difference(expected: Sequence[int], got: Sequence[int]) -> int:
    """Return the first place where two answers differ.

    Both end in the same stop token, so none is the beginning of the other.
    """
    place = 0
    while expected[place] == got[place]:
        place += 1
    return place


def refuse_other_answers(proof: Proof) -> None:
    """Fail unless rounding explains every difference.

    Raises:
        RunFailed: An answer differs where the trained policy was sure; the message has the worst.
    """
    wrong = []
    for difference in proof["differences"]:
        # At a near tie rounding decides, and either token is the trained policy's.
        if _preferred(difference) > proof["near_tie_nats"]:
            wrong.append(difference)
    if wrong:
        worst = max(wrong, key=_preferred)
        raise RunFailed(
            f"the exported folder is not the trained policy: {len(wrong)} of {proof['prompts']} "
            f"answers in {proof['engine']} differ by more than rounding, "
            f"the worst by {_preferred(worst):g} nats at token "
            f"{worst['place']} of answer {worst['prompt']} (all in export.json)"
        )


def _preferred(difference: Difference) -> float:
    """Return how much the trained policy preferred its own token, the lesser of fp32 and bf16."""
    return float(min(difference["gap_nats"], difference["gap_bf16_nats"]))


def _load(folder: Path) -> Any:
    from transformers.utils import logging

    from harness_policy_server.loading import load_policy

    logging.disable_progress_bar()
    return load_policy(folder)


def _stops(folder: Path) -> list[int]:
    from transformers import GenerationConfig

    stops = GenerationConfig.from_pretrained(folder).eos_token_id
    return list(stops) if isinstance(stops, list) else [stops]


def _greedy(
    model: Any, prompts: Sequence[Sequence[int]], limit: int, stops: list[int]
) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    # Not the folder's own settings: some have a repetition penalty, unlike training and validation.
    plain = GenerationConfig(
        max_new_tokens=limit, do_sample=False, eos_token_id=stops, pad_token_id=stops[0]
    )
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], device=model.device)
        whole = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=plain
        )
        answers.append(whole[0, len(prompt) :].tolist())
    return answers


def _to_stop(ids: list[int], stops: list[int]) -> list[int]:
    """Return the ids up to the first stop token. All stop tokens count as one.

    An engine may leave the stop token out of its result.
    """
    for place, token in enumerate(ids):
        if token in stops:
            return [*ids[:place], stops[0]]
    return [*ids, stops[0]]


def _gap(model: Any, prefix: Sequence[int], one: int, other: int) -> float:
    """Return the log-probability of one next token less that of another. Nats."""
    import torch

    with torch.inference_mode():
        logits = (
            model(input_ids=torch.tensor([list(prefix)], device=model.device)).logits[0, -1].float()
        )
    return round(float(logits[one] - logits[other]), 4)


def _vllm(exported: Path, job: dict[str, Any]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        paper = Path(folder) / "job.json"
        paper.write_text(json.dumps(job))
        command = [sys.executable, "-m", "harness_policy_server.proof", str(exported), str(paper)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode != 0:
            # The very last line is not always the error's: processes of vLLM log while they end.
            errors = []
            for line in done.stderr.splitlines():
                if "Error" in line:
                    errors.append(line)
            cause = last_line("\n".join(errors) or done.stderr)
            raise RunFailed(f"vLLM did not answer from {exported}: {cause[:300]}")
        answers: list[list[int]] = json.loads(paper.read_text())
        return answers


def main() -> None:
    """Answer a job's prompts in vLLM; the answers replace the job in its file."""
    from vllm import LLM, SamplingParams

    model, paper = sys.argv[1], Path(sys.argv[2])
    job = json.loads(paper.read_text(encoding="utf-8"))
    longest = max(map(len, job["prompts"])) + job["limit"]
    engine = LLM(
        model, max_model_len=longest, gpu_memory_utilization=job["memory"], enforce_eager=True
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    outputs = engine.generate(
        prompts, SamplingParams(temperature=0.0, max_tokens=job["limit"]), use_tqdm=False
    )
    answers = []
    for output in outputs:
        answers.append(list(output.outputs[0].token_ids))
    paper.write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
