"""`harness export`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict

import typer

from harness.cli import complete
from harness.cli.common import emit_json, results
from harness.errors import UserError
from harness.runs.folder import RunFolder
from harness.util.formatting import percent
from harness.util.parsing import at, nested

if TYPE_CHECKING:
    from harness_policy_server.proof import Proof

app = typer.Typer(add_completion=False)


class Exported(TypedDict):
    """The content of `export.json`."""

    run: str
    step: int
    folder: str
    hash: Annotated[str, "of the folder's files"]
    initial_hash: Annotated[str, "of the policy before training"]
    verified: NotRequired[Proof]


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.", autocompletion=complete.runs)],
    to: Annotated[
        Path, typer.Option("--to", help="The folder to write; it must be empty or not exist.")
    ],
    step: Annotated[
        int | None, typer.Option(help="Write this checkpoint instead of the newest.")
    ] = None,
    verify: Annotated[
        int,
        typer.Option(
            min=0, help="Number of greedy answers to compare with those of the trained policy."
        ),
    ] = 0,
    engine: Annotated[
        Literal["transformers", "vllm"] | None,
        typer.Option(
            help="Engine that answers with the written folder; by default vLLM if it can run here."
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder that transformers and vLLM load, with its export.json."""
    from harness.plugins import make_trainer
    from harness.policies.export import checkpoint_dir, checkpoint_model
    from harness.training.provenance import model_hash
    from harness_policy_server.proof import (
        choose_engine,
        compare_answers,
        recorded_prompts,
        refuse_other_answers,
    )

    folder = RunFolder.open(run)
    number, checkpoint = checkpoint_dir(folder, step)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists and is no empty folder; choose another one")
    prompts = recorded_prompts(folder, verify) if verify else []
    chosen = choose_engine(engine) if verify else None
    shutil.copytree(checkpoint_model(folder, step), to, dirs_exist_ok=True)
    written: Exported = {
        "run": folder.id,
        "step": number,
        "folder": str(to),
        "hash": model_hash(str(to)),
        "initial_hash": folder.read()["identity"]["model"],
    }
    if chosen is not None:
        config = folder.config()
        memory = float(
            at(nested(config.verl), "actor_rollout_ref.rollout.gpu_memory_utilization", 0.5)
        )
        limit = config.sampling.max_response_tokens
        trained = make_trainer(config).policy(folder, checkpoint)
        written["verified"] = compare_answers(trained, to, prompts, limit, chosen, memory)
    (to / "export.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    if json_:
        emit_json(written)
    else:
        _show(written)
    if chosen is not None:
        refuse_other_answers(written["verified"])


def _show(written: Exported) -> None:
    out = results()
    out.print(
        f"step {written['step']} of {written['run']} -> {written['folder']} "
        f"(hash {written['hash']}, before training {written['initial_hash']})"
    )
    if proof := written.get("verified"):
        gap = max((one["gap_nats"] for one in proof["differences"]), default=0.0)
        out.print(
            f"{percent(proof['identical'])} of {proof['prompts']} greedy answers in "
            f"{proof['engine']} are the trained policy's, token by token; "
            f"largest gap at a first difference: {gap:g} nats"
        )
