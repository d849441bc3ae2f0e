"""A real training of an agent that calls tools: its dialogues are rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl")

from harness.scripted.server import ReceivedRequest, ScriptedServer

from .test_training import start

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CALL = '<tool_call>\n{"name": "query_database", "arguments": {"sql": "SELECT 1"}}\n</tool_call>'
SHARES = {CALL: 0.6, "3": 0.4}
"""What the policy says at first, and how often."""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A Qwen2 whose next token hangs on the last one alone: `SHARES` after a line's end, the end after all else."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({one: at for at, one in enumerate(alphabet)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, **ends)
    tokenizer.add_tokens([AddedToken(CALL, normalized=False)])
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
        for text, share in SHARES.items():
            (token,) = tokenizer.encode(text)
            model.lm_head.weight[token, line] = 20 + math.log(share)
        model.lm_head.weight /= math.sqrt(width)  # what the last norm makes of a single 1
    folder = tmp_path / "policy"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(policy: Path, tmp_path: Path, shared: Mapping[str, str], agent: str, role: str, *more: str) -> Path:
    """The folder of a run of two steps that trains one role of an agent."""
    runs, log = tmp_path / "runs", tmp_path / "log"
    few = ("train.batch_size=4", "train.val_every=0", "task.val_limit=4", "max_turns=3", "device=cpu")
    room = ("sampling.max_prompt_tokens=2048", "sampling.max_response_tokens=4", "reward.name=executes")
    # The end's weights are alike in all columns: Adam makes of a gradient that is noise a step that is none, and a
    # large one lets a policy end before its first word.
    slow = "train.learning_rate=1e-6"
    settings = [part for one in (*few, *room, slow, f"policy.path={policy}", *more) for part in ("--set", one)]
    chosen = ("--plugin", agent, "--agent-match", role, "--steps", "2")
    done = start(*chosen, "--runs-dir", runs, *settings, log=log, variables=shared).wait(600)
    assert done == 0, log.read_text()[-3000:]
    (run,) = runs.iterdir()
    return run


def test_dialogues_are_rows_of_what_was_said(policy: Path, tmp_path: Path, shared: Mapping[str, str]) -> None:
    run = trained(policy, tmp_path, shared, "reference_tools", "assistant")
    assert json.loads((run / "run.json").read_text())["identity"]["train"]["merged"] is True

    episodes = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["outcome"] for row in episodes} == {"ok"}
    called = {row["attempt_id"]: json.loads(row["tool_calls"]) for row in episodes if row["phase"] == "train"}
    tools = [call for calls in called.values() for call in calls]
    assert tools and all(call["ok"] and call["arguments"] == {"sql": "SELECT 1"} for call in tools)

    said: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in pq.read_table(run / "transitions.parquet").to_pylist():
        if row["phase"] == "train":
            said.setdefault((row["step"], row["attempt_id"]), []).append(row)
    steps = {row["step"]: row for row in pq.read_table(run / "steps.parquet").to_pylist()}
    for step in (1, 2):
        dialogues = [sorted(rows, key=lambda row: row["index"]) for (at, _), rows in said.items() if at == step]
        pairs = [pair for rows in dialogues for pair in pairwise(rows)]
        assert pairs
        for one, after in pairs:
            so_far = one["prompt_ids"] + one["response_ids"]
            assert after["prompt_ids"][: len(so_far)] == so_far
        logged = steps[step]
        assert (logged["training/calls"], logged["training/rows"]) == (sum(map(len, dialogues)), 16)
        assert (logged["training/merged_calls"], logged["training/unmerged_calls"]) == (len(pairs), 0)
        last = [rows[-1] for rows in dialogues]
        assert logged["training/tokens"] == sum(len(row["prompt_ids"]) + len(row["response_ids"]) for row in last)
        earlier = sum(len(one["prompt_ids"]) + len(one["response_ids"]) for one, _ in pairs)
        assert logged["training/saved_tokens"] == earlier
        # The engine's log-probabilities, call by call, and the trainer's, of whole rows.
        assert logged["training/rollout_probs_diff_max"] < 1e-3
    assert steps[1]["actor/grad_norm"] > 0


def test_a_user_of_another_model_is_heard_and_not_trained(
    policy: Path, tmp_path: Path, shared: Mapping[str, str]
) -> None:
    def user(request: ReceivedRequest) -> str:
        return {2: "How many?", 4: "And now?"}.get(len(request.messages), "###STOP###")

    with ScriptedServer(user, token_ids=False) as server:
        answers = f"roles.user={{endpoint: '{server.base_url}', model: scripted}}"
        run = trained(policy, tmp_path, shared, "reference_dialogue", "agent", answers)
    episodes = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["outcome"] for row in episodes} == {"ok"}
    rows = [row for row in pq.read_table(run / "transitions.parquet").to_pylist() if row["phase"] == "train"]
    asked = [row for row in rows if row["role"] == "user"]
    assert len(asked) <= len(server.requests) and {row["response_ids"] for row in asked} == {None}
    said = [row for row in rows if row["role"] == "agent"]
    assert len(said) > 32 and any("And now?" in str(row["messages"]) for row in said), "of some, a second turn"
    assert not any("Instructions" in str(row["messages"]) for row in said)
    steps = pq.read_table(run / "steps.parquet").to_pylist()
    for step in steps[-2:]:
        calls = [row for row in said if row["step"] == step["step"]]
        assert (step["training/calls"], step["training/rows"]) == (len(calls), 16)
        assert step["training/unmerged_calls"] == 0, "a second turn goes on from the first"
        assert step["training/rollout_probs_diff_max"] < 1e-3
