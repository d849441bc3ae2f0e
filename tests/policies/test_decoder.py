"""What a request is answered does not depend on what else the CPU's decoder has in flight, to the last bit."""

from __future__ import annotations

import random
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from harness.policies import resolve  # noqa: E402
from harness.policies.decoder import Decoder, Generation  # noqa: E402

PROMPTS = 24


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve("pocket-sql"), dtype=torch.float32).eval()
    return Decoder(model, 40, 1024, {0})


def answers(decoder: Decoder, numbers: list[int]) -> dict[int, tuple[list[int], list[float]]]:
    """Token ids and log-probabilities of some prompts, asked for together."""
    finished = threading.Semaphore(0)
    asked = {}
    for number in numbers:
        drawn = random.Random(number)
        prompt = [drawn.randrange(20, 1000) for _ in range(drawn.randrange(40, 400))]
        asked[number] = Generation(prompt, 12, seed=number, done=lambda _: finished.release())
    for generation in asked.values():
        decoder.submit(generation)
    for _ in asked:
        assert finished.acquire(timeout=120)
    return {number: (generation.token_ids, generation.logprobs) for number, generation in asked.items()}


def test_company_changes_no_bit_of_an_answer(decoder: Decoder) -> None:
    alone: dict[int, tuple[list[int], list[float]]] = {}
    for number in range(PROMPTS):
        alone |= answers(decoder, [number])
    drawn = random.Random(0)
    for size in (PROMPTS, 2, 3, 7, 13, 19):
        chosen = drawn.sample(range(PROMPTS), size)
        for number, answer in answers(decoder, chosen).items():
            assert answer == alone[number], f"prompt {number} among {size}"


def test_the_seed_alone_is_the_random_stream(decoder: Decoder) -> None:
    prompt = list(range(20, 60))
    finished = threading.Semaphore(0)
    asked = [Generation(prompt, 12, seed=seed, done=lambda _: finished.release()) for seed in (5, 5, 6)]
    for generation in asked:
        decoder.submit(generation)
    for _ in asked:
        assert finished.acquire(timeout=120)
    same, again, other = (generation.token_ids for generation in asked)
    assert same == again != other
