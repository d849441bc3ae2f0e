"""The policy's own tokenizer: Qwen2's byte-level BPE, with merges in which names are spelt the same everywhere.

Merges never join a word with the space before it, with punctuation, or with a plural ending (`station|s`,
`pastr|y`), and digits stand alone: a name copied from the schema into a query is the same tokens in both. What
that costs is won back by tokens for the fixed lines of the prompts and the usual phrases of SQL and of
questions. transformers loads every tokenizer of a Qwen2 model as `Qwen2Tokenizer`, so that is what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records import Problem
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

VOCABULARY = 1280
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}{{ part['text'] if part['text'] else '' }}{% endfor %}"
    "{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# What merges may join: letters, with `s` only in front and `y` only alone.
_MERGEABLE = r"[sS]?[A-RT-XZa-rt-xz]+|[sSyY]|[0-9]|[^A-Za-z0-9]"


def phrases() -> list[str]:
    """Texts that are one token each: the prompts' fixed lines, phrases of SQL, of schemas and of questions."""
    problem = Problem("", "\0", {"schema": "\0"})
    found: dict[str, None] = {}
    prompts = (
        PROMPTS.write(problem),
        PROMPTS.check(problem, "\0", "\0"),
        PROMPTS.rewrite(problem, *"\0" * 3),
    )
    for prompt in prompts:
        for line in prompt.system.splitlines():
            if line not in (APPROVED, REJECTED):
                found[line] = None
        for part in prompt.user.split("\0"):
            if part.strip():
                found[part] = None
    for text in (
        f"\n{APPROVED}",
        f"\n{REJECTED}",
        "```sql\n",
        "\n```",
        "system\n",
        "user\n",
        "assistant\n",
    ):
        found[text] = None
    for text in json.loads((Path(__file__).parent / "phrases.json").read_text(encoding="utf-8")):
        found[text] = None
    return list(found)


def train(
    texts: Iterable[str],
    vocabulary: int = VOCABULARY,
    whole: Sequence[str] = (),
    chat_template: str = CHAT_TEMPLATE,
) -> Qwen2Tokenizer:
    """A tokenizer of `vocabulary` tokens, trained on rendered conversations.

    Args:
        whole: Texts that are one token each; by default `phrases()`.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    whole = whole or phrases()
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_MERGEABLE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(whole),
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    cut = _cutter(whole)
    # A list: the trainer would draw from an iterator in another thread, and SQLite minds.
    trained.train_from_iterator([part for text in texts for part in cut(text)], trainer)
    model = json.loads(trained.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]  # as `tokenizers` takes them
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merges,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in whole])
    tokenizer.chat_template = chat_template
    return tokenizer


def _cutter(whole: Sequence[str]) -> Callable[[str], list[str]]:
    """Splits a text at the phrases, so that no merge is spent on what is one token anyway."""
    pattern = re.compile(
        "|".join(re.escape(p) for p in (START, END, *sorted(whole, key=len, reverse=True)))
    )
    return lambda text: [part for part in pattern.split(text) if part]
