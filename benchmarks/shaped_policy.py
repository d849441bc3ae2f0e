"""Write a policy of a published architecture with random weights, to measure speed and memory.

`python benchmarks/shaped_policy.py qwen-1.5b DIR` needs no download: dimensions are those of the
published configuration, the tokenizer is the bundled one, its vocabulary filled up to the
architecture's size with entries that no text produces.

`python benchmarks/shaped_policy.py qwen-1.5b DIR 300` makes answers of 300 tokens on average, most
of them shorter and a few several times as long: any of V / 300 of the V tokens ends an answer, and
all are about equally likely.

`qwen3-0.6b` has the tokenizer of `medical-tools`, with a template that shows tools, and Qwen3's
empty thought.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    # Source: Qwen/Qwen2.5-Coder-1.5B-Instruct, config.json.
    "qwen-1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
    },
    # Source: meta-llama/Llama-3.2-1B-Instruct, config.json, as a Qwen2 model: the same matrices,
    # biases on q, k, v.
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "max_position_embeddings": 32768,
    },
    # Source: Qwen/Qwen3-0.6B, config.json.
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
    },
}
REPLY = "{{ '<|im_start|>assistant\\n' }}"
UNTHOUGHT = (
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
"""Beginning of a reply in templates, and Qwen3's addition to it."""

FLAT = 0.05
"""Scale of the last norm. Random weights would otherwise repeat their last token, since its
embedding also reads the answer."""


def main(shape: str, out: Path, mean_tokens: int | None = None) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from harness.policies import resolve

    dimensions: dict[str, Any] = {"model_type": "qwen2", **SHAPES[shape]}
    thinks = dimensions["model_type"] == "qwen3"
    tokenizer = AutoTokenizer.from_pretrained(resolve("medical-tools" if thinks else "pocket-sql"))
    if thinks:
        assert REPLY in tokenizer.chat_template
        tokenizer.chat_template = tokenizer.chat_template.replace(REPLY, REPLY + UNTHOUGHT)
    tokenizer.save_pretrained(out)
    file = out / "tokenizer.json"
    data = json.loads(file.read_text())
    vocabulary = data["model"]["vocab"]
    taken = set(vocabulary.values()) | {token["id"] for token in data["added_tokens"]}
    for number in range(dimensions["vocab_size"]):
        if number not in taken:
            vocabulary[f"filler{number}"] = number
    file.write_text(json.dumps(data))
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        **dimensions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    if mean_tokens is not None:
        torch.nn.init.constant_(model.model.norm.weight, FLAT)
        assert model.generation_config is not None
        last = dimensions["vocab_size"] - 1  # fillers, from the end
        enders = range(last, last - dimensions["vocab_size"] // mean_tokens, -1)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *enders]
    model.save_pretrained(out)
    print(f"{shape}: {model.num_parameters() / 1e9:.2f} billion random parameters in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, help="the policy's folder")
    parser.add_argument(
        "mean_tokens",
        type=int,
        nargs="?",
        help="mean length of an answer; by default it never ends",
    )
    parsed = parser.parse_args()
    main(parsed.shape, parsed.out, parsed.mean_tokens)
