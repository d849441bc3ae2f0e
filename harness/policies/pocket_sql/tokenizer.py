"""The policy's own tokenizer: Qwen2's byte-level BPE, with merges in which names are spelt the same everywhere.

Merges never join a word with the space before it, with punctuation, or with a plural ending (`station|s`,
`pastr|y`), and digits stand alone: a name copied from the schema into a query is the same tokens in both. What
that costs is won back by tokens for the fixed lines of the prompts and the usual phrases of SQL and of
questions. transformers loads every tokenizer of a Qwen2 model as `Qwen2Tokenizer`, so that is what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from harness.prompts import APPROVED, PROMPTS, REJECTED
from harness.records import Problem

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

_SQL = """
SELECT |SELECT DISTINCT |SELECT COUNT(*) FROM |SELECT AVG(|SELECT SUM(|SELECT COUNT(|SELECT MAX(|SELECT MIN(|SELECT T1.|SELECT T2.|
, T1.|, T2.|, T3.|, COUNT(*) FROM |, AVG(|, SUM(|, COUNT(|, MAX(|, MIN(|) FROM | FROM | AS T1 JOIN | AS T2 ON T1.| = T2.|
 JOIN | AS T3 ON T2.| = T3.| WHERE | WHERE T1.| WHERE T2.| AND | OR | = '|'| > | < | >= | <= | BETWEEN | IN (SELECT |
 NOT IN (SELECT | = (SELECT | > (SELECT AVG(| < (SELECT AVG(| ORDER BY | ORDER BY COUNT(*)| DESC| LIMIT | GROUP BY | GROUP BY T2.|
 HAVING COUNT(*)| UNION SELECT | INTERSECT SELECT | EXCEPT SELECT |SELECT AVG(T1.|SELECT MAX(T1.|SELECT MIN(T1.|
"""
_SCHEMA = """
 text, | integer, | real, | text)| integer)| real)| integer -> |_id|_id integer pk, |(id integer pk, |.id)|_id)|.id,|
 | |, | "|"?|".|Error: no such column: |Error: no such table: |no rows|COUNT(*)|(only the first 5 rows are shown, there are more)|
"""
_WORDS = """
List the |Show the |What is the |What is the average |What is the total |Give the |Find the |Return the |What are the different |List the distinct |Show every different |
How many |Count the |What is the number of |Give the number of | are there?| of all | of every | of each | of the | of |
 and the | and | or | whose | where the | is | is more than | is greater than | is above | is over | is less than | is below |
 is under | is smaller than | is at least | is at most | is no less than | is no more than | or more| or less| or above| or below|
 is after | is before | is not before | is not after | is above the average| is below the average|
 or later| or earlier| that belong to the | belongs to.| that the | with the highest | with the lowest | with the largest |
 with the smallest | with the latest | with the earliest | with the most | is between | in descending order of |
 in ascending order of | sorted by | ordered by | from highest to lowest.| from lowest to highest.| descending.| ascending.|
 for each |For each |Show each | and the number of its | and the number.| too.| of its |Which | have at least | have more than|
 with at least | with more than | that have no | without any | that have at least one | have both | as well as | that have |
 is higher than the average| is lower than the average| is greater than the average| with the same | as |, except those with a |
 and how many it has.| show its | that has | has the most | in one list.| in a single column.|Among the |, what is the|
, list the |, show the |, give the |, find the |, return the |'s | with |_year| year|
"""


def phrases() -> list[str]:
    """Texts that are one token each: the prompts' fixed lines, phrases of SQL, of schemas and of questions."""
    problem = Problem("", "\0", "", "\0")
    found: dict[str, None] = {}
    prompts = (PROMPTS.write(problem), PROMPTS.check(problem, "\0", "\0"), PROMPTS.rewrite(problem, *"\0" * 3))
    for prompt in prompts:
        for line in prompt.system.splitlines():
            if line not in (APPROVED, REJECTED):
                found[line] = None
        for part in prompt.user.split("\0"):
            if part.strip():
                found[part] = None
    for text in (f"\n{APPROVED}", f"\n{REJECTED}", "```sql\n", "\n```", "system\n", "user\n", "assistant\n"):
        found[text] = None
    for text in (_SQL + _SCHEMA + _WORDS).replace("\n", "").split("|"):
        if text.strip():
            found[text] = None
    return list(found)


def train(texts: Iterable[str]) -> Qwen2Tokenizer:
    """A tokenizer of `VOCABULARY` tokens, trained on rendered conversations."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    whole = phrases()
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_MERGEABLE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(whole),
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    cut = _cutter(whole)
    # A list: the trainer would draw from an iterator in another thread, and SQLite minds.
    trained.train_from_iterator([part for text in texts for part in cut(text)], trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in whole])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _cutter(whole: list[str]) -> Callable[[str], list[str]]:
    """Splits a text at the phrases, so that no merge is spent on what is one token anyway."""
    pattern = re.compile("|".join(re.escape(p) for p in (START, END, *sorted(whole, key=len, reverse=True))))
    return lambda text: [part for part in pattern.split(text) if part]
