"""Exported folders are the policy that was trained, adapters merged; anything else is noticed."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from harness.config import load_config
from harness.config.sections import PolicyConfig
from harness.errors import ConfigError, RunFailed, UserError
from harness.policies import fetched, resolve
from harness.policies.export import checkpoint_dir, checkpoint_model
from harness.runs.folder import RunFolder
from harness_policy_server.proof import compare_answers, refuse_other_answers
from harness_verl.models import export, trained_policy
from harness_verl.trainer import VerlTrainer

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytest.importorskip("verl")

PROMPTS = [[1, 5, 7, 9], [1, 300, 20], [4, 8, 15, 16, 23, 42]]


@pytest.fixture(scope="module")
def adapted() -> Any:
    """The bundled policy with adapters that change what it says."""
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        resolve("pocket-sql"), dtype=torch.float32
    )
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=4, target_modules="all-linear"
    )
    model = peft.get_peft_model(base, settings)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(adapted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As verl writes one."""
    checkpoint = tmp_path_factory.mktemp("global_step_1")
    actor = checkpoint / "actor"
    actor.mkdir()
    adapted.config.save_pretrained(actor / "huggingface")
    adapted.generation_config.save_pretrained(actor / "huggingface")
    transformers.AutoTokenizer.from_pretrained(resolve("pocket-sql")).save_pretrained(
        actor / "huggingface"
    )
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (actor / "lora_train_meta.json").write_text(
        json.dumps({"r": 4, "lora_alpha": 4, "task_type": "CAUSAL_LM"})
    )
    torch.save(adapted.state_dict(), actor / "model_world_size_1_rank_0.pt")
    return checkpoint


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export(checkpoint, folder)
    return folder


def test_the_checkpoint_is_read_as_it_was_trained(adapted: Any, checkpoint: Path) -> None:
    ids = torch.tensor([PROMPTS[2]])
    with torch.inference_mode():
        torch.testing.assert_close(
            trained_policy(checkpoint)(input_ids=ids).logits, adapted(input_ids=ids).logits
        )


@pytest.mark.slow
def test_adapters_are_merged_as_peft_merges_them(
    adapted: Any, checkpoint: Path, exported: Path
) -> None:
    written = transformers.AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.float32
    ).state_dict()
    merged = trained_policy(checkpoint).merge_and_unload().state_dict()
    base = adapted.get_base_model().state_dict()
    assert set(written) == set(merged) and not (exported / "lora_adapter").exists()
    for name, weight in merged.items():
        torch.testing.assert_close(
            written[name], weight, rtol=2**-7, atol=2e-3
        )  # bf16, twice rounded
    query = "model.layers.0.self_attn.q_proj"
    assert (written[f"{query}.weight"] - base[f"{query}.base_layer.weight"]).abs().max() > 0.1


@pytest.mark.slow
def test_an_exported_folder_gives_the_trained_answers(checkpoint: Path, exported: Path) -> None:
    proof = compare_answers(trained_policy(checkpoint), exported, PROMPTS, 8, "transformers", 0.5)
    assert proof["prompts"] == 3
    refuse_other_answers(
        proof | {"near_tie_nats": 0.2}
    )  # random prompts: far flatter than a validation's


def test_a_folder_without_the_adapters_is_noticed(checkpoint: Path) -> None:
    proof = compare_answers(
        trained_policy(checkpoint), Path(resolve("pocket-sql")), PROMPTS, 8, "transformers", 0.5
    )
    assert proof["identical"] < 1
    with pytest.raises(RunFailed, match="is not the trained policy"):
        refuse_other_answers(proof)


def test_a_dropped_checkpoint_is_not_offered(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        (tmp_path / "checkpoints" / f"global_step_{step}" / "transfer_queue").mkdir(parents=True)
    for step in (2, 10):
        (tmp_path / "checkpoints" / f"global_step_{step}" / "actor").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("10")
    folder = RunFolder(tmp_path)
    folder.write_config(load_config("cpu", agent="reference_sql"))
    assert checkpoint_dir(folder, 2) == (2, tmp_path / "checkpoints" / "global_step_2")
    assert checkpoint_dir(folder)[0] == 10
    with pytest.raises(UserError, match="no checkpoint of step 1; it has 2, 10 .*keep_checkpoints"):
        checkpoint_dir(folder, 1)


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _change(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"changed")


def _replace(file: Path) -> None:
    file.write_bytes(b"no weights")


def _inflate(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data/0", bytes(50 * 2**20))


DAMAGES = {
    _cut: "cut off",
    _change: "in it is not what was written",
    _replace: "not torch's",
    _inflate: "to 50.0",
}


@pytest.mark.parametrize("harm", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_an_older_one_offered(
    checkpoint: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        made = folder.checkpoints / f"global_step_{step}"
        shutil.copytree(checkpoint, made)
        torch.save({}, made / "data.pt")
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    file = made / "actor" / "model_world_size_1_rank_0.pt"
    VerlTrainer().policy(folder, made)
    harm(file)
    resumed = SimpleNamespace(done=2, folder=folder)
    for use in (
        lambda: VerlTrainer().export(folder, made, tmp_path / "out"),
        lambda: VerlTrainer().policy(folder, made),
        lambda: VerlTrainer().prepare(resumed),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=DAMAGES[harm]) as caught:
            use()
        message = str(caught.value)
        assert message.startswith(f"{file} is damaged: ") and "\n" not in message
        assert "(--step 1)" in message and "write 1 into" in message
    shutil.rmtree(folder.checkpoints / "global_step_1")
    with pytest.raises(UserError, match="There is no older checkpoint"):
        VerlTrainer().export(folder, made, tmp_path / "out")


def test_a_damaged_policy_is_named_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(resolve("pocket-sql"), folder)
    policy = PolicyConfig(path=str(folder))
    assert fetched(policy) == str(folder)
    torch.save({"a": torch.zeros(10)}, folder / "pytorch_model.bin")
    assert fetched(policy) == str(folder)
    _inflate(folder / "pytorch_model.bin")
    with pytest.raises(
        ConfigError, match=r"pytorch_model\.bin is damaged: it unpacks from 0\.2 MiB to 50\.0"
    ):
        fetched(policy)
    (folder / "pytorch_model.bin").unlink()
    _cut(folder / "model.safetensors")
    with pytest.raises(
        ConfigError, match=r"model\.safetensors is damaged: it is cut off"
    ) as caught:
        fetched(policy)
    assert "\n" not in str(caught.value)


def test_who_asks_for_a_checkpoint_that_another_exports_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        exported: ClassVar[list[Path]] = []

        def checkpoints(self, folder: RunFolder) -> dict[int, Path]:
            return {3: folder.path / "global_step_3"}

        def export(self, folder: RunFolder, checkpoint: Path, target: Path) -> None:
            target.mkdir()  # raises where another is at it
            self.exported.append(target)
            time.sleep(0.5)
            (target / "config.json").write_text("{}")

    monkeypatch.setattr("harness.policies.export.make_trainer", lambda config: Slow())
    monkeypatch.setattr(RunFolder, "config", lambda self: None)
    folder = RunFolder.create(tmp_path, "asked")
    (folder.path / "global_step_3").mkdir()
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: checkpoint_model(folder), range(4)))
    assert found == set(Slow.exported) and len(Slow.exported) == 1


@pytest.mark.parametrize(
    ("file", "problem"),
    [("config.json", "config.json is missing"), ("model.safetensors", "model.safetensors: ")],
)
def test_a_damaged_export_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, problem: str
) -> None:
    class Checkpoints:
        def checkpoints(self, folder: RunFolder) -> dict[int, Path]:
            return {3: folder.path / "global_step_3"}

    monkeypatch.setattr("harness.policies.export.make_trainer", lambda config: Checkpoints())
    monkeypatch.setattr(RunFolder, "config", lambda self: None)
    folder = RunFolder.create(tmp_path, "asked")
    exported = folder.path / "global_step_3" / "hf"
    shutil.copytree(resolve("pocket-sql"), exported)
    assert checkpoint_model(folder) == exported
    whole = (exported / file).read_bytes()
    (exported / file).unlink()
    if file != "config.json":
        (exported / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{re.escape(str(exported))} is damaged: {problem}") as no:
        checkpoint_model(folder)
    assert "Remove that folder; it is made again from the checkpoint" in str(no.value)
