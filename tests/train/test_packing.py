"""Packed rows: the same log-probabilities, entropies and gradients as padded ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config
from verl.utils import tensordict_utils
from verl.workers.utils.padding import no_padding_2_padding

from harness_verl import packing, prefixes
from harness_verl.cpu_worker import CpuFSDP2Engine
from harness_verl.names import PACKED, SHARED

SIZES = ((9, 4), (3, 1), (17, 8), (1, 5), (1, 1))
"""Tokens of prompt and reply, by row."""
SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def engine(config: Any, attention: str) -> Any:
    torch.manual_seed(0)
    made = object.__new__(CpuFSDP2Engine)
    made.module = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    ).train()
    made.use_ulysses_sp, made.pad_to_length = False, False
    made.engine_config = SimpleNamespace(
        entropy_checkpointing=False, entropy_from_logits_with_chunking=False
    )
    made.compute_entropy_from_logits = lambda logits: torch.distributions.Categorical(
        logits=logits
    ).entropy()
    return made


def batch(packed: bool) -> TensorDict:
    generator = torch.Generator().manual_seed(1)
    prompts, responses = (
        [torch.randint(0, 61, (size[at],), generator=generator) for size in SIZES] for at in (0, 1)
    )
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    nested = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": rows,
        "position_ids": [torch.arange(len(row)) for row in rows],
        "response_mask": [torch.ones(len(response)) for response in responses],
    }
    made = TensorDict(
        {
            name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
            for name, values in nested.items()
        },
        batch_size=len(rows),
    )
    tensordict_utils.assign_non_tensor(
        made, use_remove_padding=packed, calculate_entropy=True, temperature=0.7
    )
    return made


def found(config: Any, packed: bool) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities and entropies of replies, `[rows, longest reply]`, and the gradients of a loss of both."""
    one, data = engine(config, PACKED if packed else "sdpa"), batch(packed)
    inputs, arguments = one.prepare_model_inputs(data)
    raw = one.module(**inputs, use_cache=False)
    output = one.prepare_model_outputs(raw, arguments, data, None)
    logprobs, entropy = (
        no_padding_2_padding(output[name], data) for name in ("log_probs", "entropy")
    )
    mask = data["response_mask"].to_padded_tensor(0.0)
    weights = torch.linspace(-1, 1, mask.numel()).view(mask.shape)
    ((logprobs * weights + 0.01 * entropy) * mask).sum().backward()
    return logprobs * mask, entropy * mask, [value.grad for value in one.module.parameters()]


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SHAPE, tie_word_embeddings=True),
        LlamaConfig(**SHAPE),
        MistralConfig(**SHAPE, sliding_window=4),
    ],
    ids=lambda config: config.model_type,
)
def test_packed_rows_have_the_gradients_of_padded_ones(config: Any) -> None:
    ours, padded = found(config, packed=True), found(config, packed=False)
    assert torch.allclose(ours[0], padded[0], atol=1e-5) and torch.allclose(
        ours[1], padded[1], atol=1e-5
    )
    assert ours[0].abs().max() > 1
    for mine, theirs in zip(ours[2], padded[2], strict=True):
        assert theirs.abs().max() > 0 and torch.allclose(mine, theirs, atol=1e-5, rtol=1e-5)


def test_logits_are_made_for_replies_alone() -> None:
    one = engine(Qwen2Config(**SHAPE), PACKED)
    inputs, arguments = one.prepare_model_inputs(batch(packed=True))
    assert len(inputs["logits_to_keep"]) == sum(reply for _, reply in SIZES)
    assert one.module(**inputs, use_cache=False).logits.shape[1] == len(
        arguments["input_ids_rmpad_rolled"]
    )


def test_what_attention_does_not_know_is_refused() -> None:
    from harness_policy_server.attention import packed

    none, ends = torch.zeros(1, 1, 2, 2), torch.tensor([0, 2])
    with pytest.raises(NotImplementedError, match=r"no softcap.*--set train.packed=false"):
        packed(
            torch.nn.Identity(),
            none,
            none,
            none,
            cu_seqlens=ends,
            cu_seqlens_cpu=ends,
            softcap=30.0,
        )


def test_on_policy_the_old_log_probabilities_are_the_present_ones() -> None:
    from verl.trainer.ppo import core_algos

    from harness_verl.names import ON_POLICY

    clip = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
    config = SimpleNamespace(**clip, get=lambda name, default: default, global_batch_info={})
    generator = torch.Generator().manual_seed(2)
    now, advantages = (torch.randn(3, 4, generator=generator) for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    gradients = []
    for mode, old in (("vanilla", now), (ON_POLICY, now - 5)):  # whatever the rollout reported
        log_prob = now.clone().requires_grad_()
        loss, metrics = core_algos.get_policy_loss_fn(mode)(
            old_log_prob=old,
            log_prob=log_prob,
            advantages=advantages,
            response_mask=mask,
            config=config,
        )
        loss.backward()
        assert metrics["actor/ppo_kl"] == 0 and metrics["actor/pg_clipfrac"] == 0
        gradients.append(log_prob.grad)
    assert torch.equal(*gradients) and gradients[0].abs().max() > 0


def shared_batch() -> TensorDict:
    """Rows as an update has them: replies to one prompt, prompts that go on differently, a row twice, one alone."""
    generator = torch.Generator().manual_seed(3)

    def ids(size: int) -> torch.Tensor:
        return torch.randint(0, 61, (size,), generator=generator)

    system, first, second, reply = ids(5), ids(9), ids(7), ids(4)
    pairs = [
        (torch.cat([system, first]), reply),
        (torch.cat([system, second]), ids(3)),
        (torch.cat([system, first]), torch.cat([reply[:2], ids(3)])),
        (ids(6), ids(1)),
        (torch.cat([system, first]), reply),
        (torch.cat([system, first, ids(4)]), ids(2)),
        (system, ids(1)),
    ]
    rows = [torch.cat(pair) for pair in pairs]
    nested = {
        "prompts": [prompt for prompt, _ in pairs],
        "responses": [response for _, response in pairs],
        "input_ids": rows,
        "position_ids": [torch.arange(len(row)) for row in rows],
        "response_mask": [torch.ones(len(response)) for _, response in pairs],
    }
    made = TensorDict(
        {
            name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
            for name, values in nested.items()
        },
        batch_size=len(rows),
    )
    tensordict_utils.assign_non_tensor(
        made, use_remove_padding=True, calculate_entropy=True, temperature=0.7
    )
    return made


def results(config: Any, attention: str) -> tuple[torch.Tensor, torch.Tensor, list[Any], int]:
    """Return log probabilities, entropies, gradients, and the tokens that the model computed."""
    made, data = engine(config, attention), shared_batch()
    inputs, arguments = made.prepare_model_inputs(data)
    raw = made.module(**inputs, use_cache=False)
    output = made.prepare_model_outputs(raw, arguments, data, None)
    log_probs = no_padding_2_padding(output["log_probs"], data)
    entropy = no_padding_2_padding(output["entropy"], data)
    mask = data["response_mask"].to_padded_tensor(0.0)
    weights = torch.linspace(-1, 1, mask.numel()).view(mask.shape)
    ((log_probs * weights + 0.01 * entropy) * mask).sum().backward()
    gradients = [value.grad for value in made.module.parameters()]
    return log_probs * mask, entropy * mask, gradients, inputs["input_ids"].shape[1]


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SHAPE, tie_word_embeddings=True),
        LlamaConfig(**SHAPE),
        MistralConfig(**SHAPE, sliding_window=4),
    ],
    ids=lambda config: config.model_type,
)
def test_shared_prompts_have_the_gradients_of_repeated_ones(config: Any) -> None:
    shared, repeated = results(config, SHARED), results(config, PACKED)
    assert shared[3] < repeated[3] == sum(map(len, shared_batch()["input_ids"].unbind()))
    for ours, theirs in zip(shared[:2], repeated[:2], strict=True):
        assert theirs.abs().max() > 1 and torch.allclose(ours, theirs, atol=1e-5)
    for ours, theirs in zip(shared[2], repeated[2], strict=True):
        assert theirs.abs().max() > 0 and torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_each_distinct_prefix_is_computed_once() -> None:
    made = engine(Qwen2Config(**SHAPE), SHARED)
    inputs, _ = made.prepare_model_inputs(shared_batch())
    rows = [row.tolist() for row in shared_batch()["input_ids"].unbind()]
    distinct = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    repeated_rows = len(rows) - len({tuple(row) for row in rows})
    # A row that is there twice computes its last token again, so that no row is empty.
    assert inputs["input_ids"].shape[1] == len(distinct) + repeated_rows


def test_passes_keep_rows_that_share_a_prefix_together() -> None:
    rows = [row.numpy() for row in shared_batch()["input_ids"].unbind()]
    divided = prefixes.passes(rows, tokens=40)
    assert sorted(number for part in divided for number in part) == list(range(len(rows)))
    assert any({0, 2, 4} <= set(part) for part in divided) and len(divided) > 1
    for part in divided:
        computed = len(prefixes.shared_layout([rows[number] for number in part]).computed)
        assert computed <= 40
    assert len(prefixes.passes(rows, tokens=30, at_least=len(rows))) == len(rows)


def test_passes_by_prefix_select_the_rows_that_they_name() -> None:
    data = shared_batch()
    tensordict_utils.assign_non_tensor(data, max_token_len_per_gpu=30)
    parts, numbers = packing.passes_by_prefix(data)
    rows = data["input_ids"].unbind()
    for part, named in zip(parts, numbers, strict=True):
        for row, number in zip(part["input_ids"].unbind(), named, strict=True):
            assert torch.equal(row, rows[number])
