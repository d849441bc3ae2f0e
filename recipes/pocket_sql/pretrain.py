"""Pre-trains the seed policy from nothing.

`python -m recipes.pocket_sql.pretrain --out DIR [--device cuda] [--minutes M | --steps N] [--seed S]`

Needs torch, transformers, tokenizers and safetensors, and no network. `DIR` then holds what is shipped in
`harness/policies/pocket_sql/model`. The order of the data follows from the seed alone; weights also depend on the
hardware.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from harness.policies.download import sha256
from harness.programs.self_correcting_sql.prompts import PROMPTS
from recipes.pocket_sql.data import Source, Stream, drafts_digest, tokenizer_texts
from recipes.pocket_sql.evaluate import Pocket, Policy, random_roles, report, share
from recipes.pocket_sql.samples import PocketExamples
from recipes.pocket_sql.tokenizer import VOCABULARY, train

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

log = logging.getLogger(__name__)

ARCHITECTURE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, out=None, learning_rate=2e-3)
    parser.add_argument("--tokenizer-worlds", type=int, default=6000)
    parser.add_argument("--tokenizer", type=Path, help="reuse the tokenizer of this folder")
    parser.add_argument("--no-habits", action="store_true", help="the twin with right drafts: what the habits cost")
    return parser.parse_args(argv)


def add_options(
    parser: argparse.ArgumentParser,
    out: Path | None,
    learning_rate: float,
    minutes: float = 8.0,
    replays: int = 1,
    batch_tokens: int = 65536,
) -> None:
    """The options of `fit`."""
    parser.add_argument("--out", type=Path, required=out is None, default=out)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=float, default=minutes, help="training time; the learning rate follows the clock"
    )
    length.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=batch_tokens)
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--replays", type=int, default=replays, help="earlier groups repeated after each fresh one")
    parser.add_argument("--blocks-per-group", type=int, default=40)
    parser.add_argument("--every-s", type=float, default=60.0, help="seconds between evaluations")
    parser.add_argument("--limit", type=int, help="evaluate on this many questions only (for rehearsals)")


def pretrain(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; returns the manifest."""
    import torch

    started = time.perf_counter()
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(arguments)
    log.info("tokenizer: %d tokens, %.0f s", len(tokenizer), time.perf_counter() - started)
    model = make_model(tokenizer).to(arguments.device)
    log.info("model: %.2f M parameters", sum(p.numel() for p in model.parameters()) / 1e6)
    pocket = Pocket(limit=arguments.limit)

    def measure(policy: Policy) -> str:
        roles = random_roles(policy, arguments.seed, 40 if arguments.limit is None else 2)
        return f"{roles}  pocket draft {share(pocket.drafts(policy)):.3f}  loop {share(pocket.loop(policy)):.3f}"

    source = PocketExamples(arguments.seed, not arguments.no_habits)
    progress = fit(model, tokenizer, source, arguments, measure)
    progress["drafts_sha256"] = drafts_digest(arguments.seed, not arguments.no_habits)
    save(model, out)
    policy = Policy(model.float(), tokenizer)
    measured = report(
        policy, samples=8 if arguments.device == "cuda" else 0, seed=arguments.seed, limit=arguments.limit
    )
    log.info("final: %s", json.dumps(measured))
    name = "pocket-sql without habits" if arguments.no_habits else "pocket-sql"
    return write_manifest(out, arguments, progress, measured, name, "recipes.pocket_sql.pretrain")


def fit(
    model: Any, tokenizer: Any, source: Source, arguments: argparse.Namespace, measure: Callable[[Policy], str | None]
) -> dict[str, Any]:
    """Train a model on a source of examples; returns what was done.

    Args:
        arguments: `seed`, `device`, `steps` or `minutes`, `batch_tokens`, `learning_rate`, `workers`, `replays`,
            `blocks_per_group`, `every_s`, `out`.
        measure: Called every `every_s` seconds; its text is logged. None ends the training.
    """
    stream = Stream(source, str(arguments.out / "tokenizer.json"), arguments.workers, arguments.blocks_per_group)
    try:
        return _fit(model, tokenizer, stream, arguments, measure)
    finally:
        stream.close()
        model.eval()


def _fit(
    model: Any, tokenizer: Any, stream: Stream, arguments: argparse.Namespace, measure: Callable[[Policy], str | None]
) -> dict[str, Any]:
    import torch

    device = arguments.device
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=arguments.learning_rate,
        betas=(0.9, 0.95),
        fused=device == "cuda",
    )
    rng = Random(f"order/{arguments.seed}")
    policy = Policy(model, tokenizer)
    groups: list[Any] = []
    step, tokens, begun, waited = 0, 0, time.perf_counter(), 0.0
    paused, spoken, last_loss = 0.0, time.perf_counter(), 0.0
    done, enough = 0.0, False
    while done < 1 and not enough:
        asked = time.perf_counter()
        groups.append(stream.group())
        waited += time.perf_counter() - asked
        again = [groups[rng.randrange(len(groups))] for _ in range(arguments.replays)]
        for group in (groups[-1], *again):
            for ids, targets in group.batches(rng, arguments.batch_tokens, device):
                elapsed = time.perf_counter() - begun - paused
                done = step / arguments.steps if arguments.steps else elapsed / (60 * arguments.minutes)
                if done >= 1 or enough:
                    break
                rate = arguments.learning_rate * schedule(done, step)
                for settings in optimizer.param_groups:
                    settings["lr"] = rate
                loss = _step(model, optimizer, ids, targets, device)
                step += 1
                tokens += ids.numel()
                if step % 200 == 0:
                    last_loss = float(loss)
                    log.info(
                        "step %d  %.1f %%  loss %.4f  %.2f M tokens/s  waited %.0f s",
                        step, 100 * done, last_loss, tokens / 1e6 / max(elapsed, 1e-9), waited,
                    )  # fmt: skip
                if time.perf_counter() - spoken > arguments.every_s:
                    spoken = time.perf_counter()
                    model.eval()
                    told = measure(policy)
                    enough = told is None
                    log.info("held out: %s", "enough" if enough else told)
                    model.train()
                    paused += time.perf_counter() - spoken
                    spoken = time.perf_counter()
    return {
        "steps": step,
        "tokens": tokens,
        "fresh_blocks": stream.blocks,
        "train_s": round(time.perf_counter() - begun - paused, 1),
        "last_loss": last_loss,
        "data_sha256": stream.digest.hexdigest(),
    }


def schedule(done: float, step: int) -> float:
    """Share of the peak learning rate: 300 steps of warm-up, then a cosine down to 2 %."""
    return min(1.0, (step + 1) / 300) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def _step(model: Any, optimizer: Any, ids: Any, targets: Any, device: str) -> Any:
    import torch

    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        # Padding is on the right, so a causal model needs no mask; logits are made for replies only.
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        wanted = targets[:, 1:]
        kept = wanted != -100
        logits = model.lm_head(hidden[:, :-1][kept])
    loss = torch.nn.functional.cross_entropy(logits.float(), wanted[kept])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def make_tokenizer(arguments: argparse.Namespace) -> Qwen2Tokenizer:
    """Train the tokenizer, or take it from another folder, and save it to the output folder."""
    from transformers import AutoTokenizer

    if arguments.tokenizer:
        tokenizer: Qwen2Tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    else:
        tokenizer = train(tokenizer_texts(arguments.seed, arguments.tokenizer_worlds))
    tokenizer.save_pretrained(arguments.out)
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer, architecture: Mapping[str, Any] = ARCHITECTURE) -> Any:
    """A Qwen2 model with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **architecture,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    config._attn_implementation = "sdpa"
    return Qwen2ForCausalLM(config)


def save(model: Any, out: Path) -> None:
    """Weights in float16 and a configuration of plain Qwen2 fields."""
    import torch
    from safetensors.torch import save_file

    weights = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in sorted(model.state_dict().items())
        if name != "lm_head.weight"
    }
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float16",
        "torch_dtype": "float16",
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": model.config.rms_norm_eps,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": model.config.num_hidden_layers,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
        **{name: getattr(model.config, name) for name in ARCHITECTURE},
    }
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generation = {"eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"]}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def write_manifest(
    out: Path,
    arguments: argparse.Namespace,
    progress: dict[str, Any],
    measured: dict[str, Any],
    policy: str,
    module: str,
    prompts: str = PROMPTS.hash,
) -> dict[str, Any]:
    """`manifest.json`: hashes of the files, and all that is needed to make them again."""
    import tokenizers
    import torch
    import transformers

    length = f"--steps {arguments.steps}" if arguments.steps else f"--minutes {arguments.minutes:g}"
    habits = " --no-habits" if vars(arguments).get("no_habits") else ""
    chosen = ((name, vars(arguments).get(name)) for name in ("base", "on", "name", "until"))
    own = habits + "".join(f" --{name} {value}" for name, value in chosen if value is not None)
    files = sorted(p for p in out.iterdir() if p.name != "manifest.json" and p.is_file())
    manifest = {
        "policy": policy,
        "licence": "Apache-2.0",
        "command": f"python -m {module} --out DIR --device {arguments.device} {length} --seed {arguments.seed}{own}",
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items() if k != "out"},
        "seed": arguments.seed,
        "training": progress,
        "measured": measured,
        "prompts": prompts,
        "versions": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "hardware": torch.cuda.get_device_name() if arguments.device == "cuda" else platform.machine(),
        "sha256": {path.name: sha256(path) for path in files},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def main(make: Callable[[argparse.Namespace], dict[str, Any]], parse: Callable[[], argparse.Namespace]) -> int:
    """The command: a policy from its arguments, and what it measures on stdout."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "transformers"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    manifest = make(parse())
    sys.stdout.write(json.dumps({k: manifest[k] for k in ("training", "measured")}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(pretrain, parse_arguments))
