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


def prompt_of(number: int) -> list[int]:
    drawn = random.Random(number)
    return [drawn.randrange(20, 1000) for _ in range(drawn.randrange(40, 400))]


def answers(decoder: Decoder, numbers: list[int]) -> dict[int, tuple[list[int], list[float]]]:
    """Token ids and log-probabilities of some prompts, asked for together."""
    finished = threading.Semaphore(0)
    asked = {}
    for number in numbers:
        asked[number] = Generation(prompt_of(number), 12, seed=number, done=lambda _: finished.release())
    for generation in asked.values():
        decoder.submit(generation)
    for _ in asked:
        assert finished.acquire(timeout=120)
    return {number: (generation.token_ids, generation.logprobs) for number, generation in asked.items()}


def test_company_changes_no_bit_of_an_answer(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.policies.decoder.KEPT", 0)  # every prompt is read again in each company
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


def test_a_prompt_is_read_once_until_the_weights_change(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = decoder._reading

    def reading(width: int, prompts: list[tuple[int, ...]]) -> object:
        read.append(len(prompts))
        return whole(width, prompts)

    weights = decoder.model.state_dict()
    decoder.load_weights(weights)
    monkeypatch.setattr(decoder, "_reading", reading)
    first = answers(decoder, [1])
    assert answers(decoder, [1]) == first and sum(read) == 1
    decoder.load_weights({name: tensor * 2 for name, tensor in weights.items()})
    assert answers(decoder, [1]) != first and sum(read) == 2
    decoder.load_weights({name: tensor / 2 for name, tensor in weights.items()})
    assert answers(decoder, [1]) == first and sum(read) == 3


def test_the_prompts_that_are_kept_are_the_last_ones(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder.load_weights({})
    last = [prompt_of(number) for number in (1, 4, 5)]
    monkeypatch.setattr("harness.policies.decoder.KEPT", sum(map(len, last)))
    for number in (1, 2, 3, 1, 4, 5):
        answers(decoder, [number])
    assert [list(prompt) for prompt in decoder._read] == last
