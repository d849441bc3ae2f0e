"""Small policies with scripted replies, each in a given share of the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def scripted_policy(shares: Mapping[str, float], folder: Path) -> Path:
    """A Qwen2 whose next token hangs on the last one alone: one of `shares` after a line's end, the end after all else.

    Args:
        shares: Texts, each a token of its own, and the share of each.
        folder: Where the policy is written.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({one: at for at, one in enumerate(alphabet)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, **ends)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in shares])
    tokenizer.chat_template = TEMPLATE
    width = 16 * 17
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=17,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    (line,) = tokenizer.encode("\n")
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokenizer), width))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[tokenizer.eos_token_id] = 20
        model.lm_head.weight[:, line] = 0
        for text, share in shares.items():
            (token,) = tokenizer.encode(text)
            model.lm_head.weight[token, line] = 20 + math.log(share)
        model.lm_head.weight /= math.sqrt(width)  # what the last norm makes of a single 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
