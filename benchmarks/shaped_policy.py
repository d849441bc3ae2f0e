"""Writes a policy of a published architecture with random weights: for measuring speed and memory, nothing else.

`python benchmarks/shaped_policy.py qwen-1.5b DIR` needs no download: dimensions are those of the published
configuration, the tokenizer is the bundled one, its vocabulary filled up to the architecture's size with entries
that no text produces.

`python benchmarks/shaped_policy.py qwen-1.5b DIR 300` makes answers of 300 tokens on average, most of them shorter and
a few several times as long: any of V / 300 of the V tokens ends an answer, and all are about equally likely.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SHAPES = {
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
    # Source: meta-llama/Llama-3.2-1B-Instruct, config.json (as a Qwen2 model: same matrices, biases on q, k, v).
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
}


FLAT = 0.05
"""Of the last norm: random weights would otherwise repeat their last token, whose embedding also reads the answer."""


def main(shape: str, out: Path, mean_tokens: int | None = None) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from harness.policies import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("pocket-sql"))
    dimensions = SHAPES[shape]
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
    config = Qwen2Config(
        **dimensions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    if mean_tokens is not None:
        torch.nn.init.constant_(model.model.norm.weight, FLAT)
        assert model.generation_config is not None
        last = dimensions["vocab_size"] - 1  # fillers, from the end
        enders = range(last, last - int(dimensions["vocab_size"]) // mean_tokens, -1)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *enders]
    model.save_pretrained(out)
    print(f"{shape}: {model.num_parameters() / 1e9:.2f} billion random parameters in {out}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *(int(argument) for argument in sys.argv[3:4]))
