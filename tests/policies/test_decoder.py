"""The CPU's decoder: what it answers, how it draws, what it reads again. Company: test_company.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from company import SHAPE, answers, decoder_of, first_difference, prompt_of, tiny  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
)

from harness.policies import resolve  # noqa: E402
from harness_policy_server.decoder import Decoder, Generation  # noqa: E402

CONFIGS = [
    Qwen2Config(**SHAPE),
    LlamaConfig(**SHAPE, tie_word_embeddings=True),
    MistralConfig(**SHAPE, sliding_window=8),
    Gemma3TextConfig(**SHAPE, sliding_window=8),
]


@pytest.fixture
def stopped() -> Iterator[list[Decoder]]:
    made: list[Decoder] = []
    yield made
    for decoder in made:
        decoder.stop()


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    made = decoder_of(
        AutoModelForCausalLM.from_pretrained(resolve("pocket-sql"), dtype=torch.float32)
    )
    yield made
    made.stop()


@pytest.mark.slow
def test_a_mixture_of_experts_is_computed_row_by_row(stopped: list[Decoder]) -> None:
    stopped.append(decoder_of(tiny(MixtralConfig(**SHAPE, num_local_experts=4))))
    assert first_difference(stopped[0], sizes=(12,)) == "" and stopped[0]._passes.rows == 1


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_the_answer_is_that_of_transformers(config: Any, stopped: list[Decoder]) -> None:
    asked, want = [2, 4, 0], {}
    model = tiny(config)
    for number in asked:
        prompt = torch.tensor([prompt_of(number)])
        want[number] = model.generate(
            prompt, max_new_tokens=6 + number % 5, do_sample=False, eos_token_id=None
        )
    stopped.append(Decoder(model, 8, 1100, set()))
    finished = threading.Semaphore(0)
    made = {
        number: Generation(
            prompt_of(number), 6 + number % 5, temperature=0, done=lambda _: finished.release()
        )
        for number in asked
    }
    for generation in made.values():
        stopped[0].submit(generation)
    for _ in made:
        assert finished.acquire(timeout=60)
    for number, generation in made.items():
        assert [*prompt_of(number), *generation.token_ids] == want[number][0].tolist()


def test_what_a_model_asks_of_attention_and_is_not_computed_reaches_the_caller(
    stopped: list[Decoder],
) -> None:
    from transformers import GptOssConfig

    shape = {name: value for name, value in SHAPE.items() if name != "initializer_range"}
    stopped.append(decoder_of(tiny(GptOssConfig(**shape, num_local_experts=2))))
    with pytest.raises(NotImplementedError, match=r"asks for s_aux, .* --endpoint"):
        answers(stopped[0], [3])


def test_the_seed_alone_is_the_random_stream(decoder: Decoder) -> None:
    prompt = list(range(20, 60))
    finished = threading.Semaphore(0)
    asked = [
        Generation(prompt, 12, seed=seed, done=lambda _: finished.release()) for seed in (5, 5, 6)
    ]
    for generation in asked:
        decoder.submit(generation)
    for _ in asked:
        assert finished.acquire(timeout=120)
    same, again, other = (generation.token_ids for generation in asked)
    assert same == again != other


@pytest.mark.slow
def test_tokens_are_drawn_as_often_as_they_are_likely(stopped: list[Decoder]) -> None:
    """20,000 first tokens of one prompt against their probabilities: a chi-squared test at 1e-6."""
    from scipy.stats import chi2

    stopped.append(decoder_of(tiny(LlamaConfig(**{**SHAPE, "vocab_size": 16})), seats=64))
    finished = threading.Semaphore(0)
    asked = [
        Generation(
            [3, 5, 7], 1, temperature=1.5, top_p=0.9, seed=seed, done=lambda _: finished.release()
        )
        for seed in range(20_000)
    ]
    for generation in asked:
        stopped[0].submit(generation)
    for _ in asked:
        assert finished.acquire(timeout=120)
    likely = {generation.token_ids[0]: generation.logprobs[0] for generation in asked}
    counts = {
        token: sum(generation.token_ids[0] == token for generation in asked) for token in likely
    }
    expected = {token: len(asked) * 2.718281828459045**logprob for token, logprob in likely.items()}
    assert 3 < len(likely) < 16 and sum(expected.values()) == pytest.approx(len(asked), rel=1e-3)
    distance = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in likely)
    assert distance < chi2.isf(1e-6, len(likely) - 1)


def test_a_prompt_is_read_once_until_the_weights_change(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = decoder._passes.read

    def reading(*prompts: tuple[int, ...]) -> object:
        read.extend(map(len, prompts))
        return whole(*prompts)

    weights = decoder.model.state_dict()
    answers(decoder, [2])  # a decoder's first request also reads a prompt to try its rows with
    decoder.load_weights(weights)
    monkeypatch.setattr(decoder._passes, "read", reading)
    first = answers(decoder, [1])
    assert answers(decoder, [1]) == first and len(read) == 1
    decoder.load_weights({name: tensor * 2 for name, tensor in weights.items()})
    assert answers(decoder, [1]) != first and len(read) == 2
    decoder.load_weights({name: tensor / 2 for name, tensor in weights.items()})
    assert answers(decoder, [1]) == first and len(read) == 3


def test_the_prompts_that_are_kept_are_the_last_ones(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder.load_weights({})
    last = [prompt_of(number) for number in (1, 4, 5)]
    monkeypatch.setattr("harness_policy_server.decoder.KEPT", sum(map(len, last)))
    for number in (1, 2, 3, 1, 4, 5):
        answers(decoder, [number])
    assert [list(prompt) for prompt in decoder._read] == last
