"""A policy in this process: decoding in batches, from a folder or with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Policy:
    """A model with its tokenizer, decoding in batches."""

    model: Any
    tokenizer: Any
    batch: int = 512
    max_new_tokens: int = 72

    def complete(self, prompts: Sequence[Any], temperature: float = 0.0) -> list[str]:
        """One reply to each prompt, which has messages; greedy at temperature 0."""
        render = self.tokenizer.apply_chat_template
        return self.go_on(
            [render(p.messages, tokenize=False, add_generation_prompt=True) for p in prompts],
            temperature,
        )

    def go_on(self, texts: Sequence[str], temperature: float = 0.0) -> list[str]:
        """One reply to each rendered conversation."""
        import torch

        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        replies = [""] * len(texts)
        self.tokenizer.padding_side = "left"
        for first in range(0, len(order), self.batch):
            rows = order[first : first + self.batch]
            inputs = self.tokenizer(
                [texts[i] for i in rows],
                return_tensors="pt",
                padding=True,
                add_special_tokens=False,
            ).to(self.model.device)
            sampling: dict[str, Any] = {"do_sample": False}
            if temperature:
                sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            with torch.no_grad():
                out = self.model.generate(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    max_new_tokens=self.max_new_tokens,
                    pad_token_id=self.tokenizer.pad_token_id,
                    eos_token_id=self.tokenizer.eos_token_id,
                    **sampling,
                )
            for i, ids in zip(rows, out[:, inputs["input_ids"].shape[1] :], strict=True):
                replies[i] = self.tokenizer.decode(ids, skip_special_tokens=True)
        return replies


def load(folder: str, device: str = "cpu") -> Policy:
    """A policy from its folder, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    return Policy(model.to(device).eval(), AutoTokenizer.from_pretrained(folder))


def from_nothing(
    tokenizer: Any,
    width: int,
    inner: int,
    layers: int,
    heads: int,
    key_heads: int,
    vocabulary: int | None = None,
) -> Any:
    """A Qwen2 model with random weights, tied embeddings and, by default, as many tokens as its tokenizer has."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary or len(tokenizer),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    config._attn_implementation = "sdpa"
    return Qwen2ForCausalLM(config)


def share(values: Sequence[float]) -> float:
    """The mean of verdicts or rewards, to four places."""
    return round(sum(values) / max(len(values), 1), 4)


def spread(whole: Sequence[T], most: int | None) -> Sequence[T]:
    """So many of a list, evenly over all of it."""
    return (
        whole
        if most is None or most >= len(whole)
        else [whole[i * len(whole) // most] for i in range(most)]
    )
