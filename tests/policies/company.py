"""Whether answers and gradients depend on what else is computed; run as a script, under a process's own kernels.

    python tests/policies/company.py

Prints nothing and ends with status 0, or names the first prompt or row that came out otherwise.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

from harness_policy_server.decoder import Decoder, Generation

LENGTHS = (1, 2, 15, 63, 64, 65, 130, 257, 384, 500, 777, 1000)
"""Tokens of prompts, by number."""
SHAPE: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Answers = dict[int, tuple[list[int], list[float]]]


def tiny(config: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def prompt_of(number: int) -> list[int]:
    drawn = random.Random(number)
    return [drawn.randrange(20, 250) for _ in range(LENGTHS[number % len(LENGTHS)])]


def answers(decoder: Decoder, numbers: Sequence[int], tokens: int = 6) -> Answers:
    """Token ids and log-probabilities of some prompts, asked for together; some end earlier than others."""
    finished = threading.Semaphore(0)
    asked = {
        number: Generation(
            prompt_of(number),
            tokens + number % 5,
            temperature=number % 3,
            seed=number,
            done=lambda _: finished.release(),
        )
        for number in numbers
    }
    for generation in asked.values():
        decoder.submit(generation)
    for _ in asked:
        assert finished.acquire(timeout=300)
    for generation in asked.values():
        if generation.error is not None:
            raise generation.error
    return {
        number: (generation.token_ids, generation.logprobs) for number, generation in asked.items()
    }


def first_difference(
    decoder: Decoder, prompts: int = len(LENGTHS), sizes: Sequence[int] = (12, 2, 5, 9)
) -> str:
    """Answer each prompt alone and in several companies; the first that is answered otherwise, or nothing.

    Companies are drawn anew for each size, so that seats are freed and taken by others; the largest has more requests
    than a block of rows where there are so many prompts.
    """
    alone: Answers = {}
    for number in range(prompts):
        alone |= answers(decoder, [number])
        decoder.load_weights({})  # every prompt is read again in each company
    drawn = random.Random(0)
    for size in sizes:
        for number, answer in answers(decoder, drawn.sample(range(prompts), size)).items():
            if answer != alone[number]:
                return f"prompt {number} of {len(prompt_of(number))} tokens among {size}"
        decoder.load_weights({})
    return ""


def decoder_of(model: Any, seats: int = 40) -> Decoder:
    return Decoder(model.eval(), seats, 1100, {0})


def first_other_gradient(
    model: Any, row_lengths: Sequence[int] = (1, 700, 2, 33, 64, 190, 401)
) -> str:
    """Compute the gradient of each row alone and among others that weigh nothing; the first that is another."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from harness_policy_server.attention import attention_by_row
    from harness_verl.row_by_row import take_rows_apart

    def attention(
        module: Any, *states: Any, scaling: Any = None, sliding_window: Any = None, **_: Any
    ) -> Any:
        asking, keys, values = states[:3]
        return attention_by_row(asking, keys, values, sizes, scaling, sliding_window), None

    AttentionInterface.register("by_row", attention)
    AttentionMaskInterface.register("by_row", lambda *_, **__: None)
    model.set_attn_implementation("by_row")
    sizes: list[int] = []
    take_rows_apart(model.train(), lambda: {sum(sizes): sizes})
    rows = [torch.tensor([prompt_of(12 * 7 + 11)[:length]]) for length in row_lengths]

    def gradient(chosen: Sequence[int], weighs: int) -> list[torch.Tensor]:
        sizes[:] = [row_lengths[row] for row in chosen]
        model.zero_grad()
        found = model(
            input_ids=torch.cat([rows[row] for row in chosen], 1),
            position_ids=torch.cat([torch.arange(size) for size in sizes])[None],
            use_cache=False,
        ).logits.split(sizes, 1)
        sum(
            ((row == weighs) * logits[0].log_softmax(-1)[:, 7]).sum()
            for row, logits in zip(chosen, found, strict=True)
        ).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    drawn = random.Random(0)
    for row in range(len(rows)):
        alone = gradient([row], row)
        assert max(float(one.abs().max()) for one in alone) > 0
        for size in (2, 4, len(rows)):
            company = [
                row,
                *drawn.sample([other for other in range(len(rows)) if other != row], size - 1),
            ]
            drawn.shuffle(company)
            if not all(map(torch.equal, alone, gradient(company, row))):
                return f"the gradient of row {row} of {row_lengths[row]} tokens among {company}"
    return ""


def main() -> None:
    import torch
    from transformers import Qwen2Config

    from harness_policy_server import passes

    for threads, passes.SMALL in ((1, 0), (2, 0), (2, 10**9)):
        torch.set_num_threads(threads)
        model = tiny(
            Qwen2Config(**SHAPE | {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64})
        )
        decoder = decoder_of(model)
        found = first_difference(decoder, prompts=20, sizes=(20, 3, 17))
        decoder.stop()
        torch.set_num_threads(
            threads
        )  # a decoder's threads have a number of their own, which later ones begin with
        if found := found or first_other_gradient(model, (1, 401, 2, 190)):
            sys.exit(f"{found}, {threads} threads, lanes up to {passes.SMALL} parameters")


if __name__ == "__main__":
    main()
