"""Checkpoints written during training: only complete ones are named, and partial ones are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra cpu or gpu")
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402

from harness.runs.folder import RunFolder  # noqa: E402
from harness_verl.checkpoints import MARKER, PREFIX, checkpoints, drop_broken  # noqa: E402
from harness_verl.options import VerlTrainConfig  # noqa: E402
from harness_verl.saving import Completion, Writer  # noqa: E402

MODEL = "model_world_size_1_rank_0.pt"


def save(folder: Path, step: int, value: float = 1.0) -> Writer:
    """Save a checkpoint as verl does, its weights in the background."""
    writer = Writer(0)
    actor = folder / f"{PREFIX}{step}" / "actor"
    with writer.collecting(actor):
        torch.save({"weight": torch.full((4,), value)}, actor / MODEL)
    torch.save({}, actor.parent / "data.pt")
    return writer


def test_the_files_hold_what_was_there_when_training_went_on(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    states["tied"] = {"one": model.weight, "other": model.weight}
    for name, state in states.items():
        torch.save(state, tmp_path / f"{name}.now")
    writer = Writer(0)
    with writer.collecting(tmp_path / "actor"):
        for name, state in states.items():
            torch.save(state, tmp_path / f"{name}.later")
    for _ in range(3):  # training goes on
        optimizer.step()
    writer.wait()
    for name in states:
        now, later = (
            torch.load(tmp_path / f"{name}.{when}", weights_only=False) for when in ("now", "later")
        )
        torch.testing.assert_close(later, now, rtol=0, atol=0)
    tied = torch.load(tmp_path / "tied.later")
    assert tied["one"].data_ptr() == tied["other"].data_ptr()
    assert not [*(tmp_path / "actor").iterdir()]


def test_tensors_of_a_mesh_stay_tensors_of_that_mesh(tmp_path: Path) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        weight = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        writer = Writer(0)
        with writer.collecting(tmp_path / "actor"):
            torch.save({"weight": weight}, tmp_path / MODEL)
        weight.to_local().zero_()
        writer.wait()
        found = torch.load(tmp_path / MODEL, weights_only=False)["weight"]
        assert isinstance(found, DTensor)
        assert found.placements == (Shard(0),)
        assert found.to_local().tolist() == [*range(8)]
    finally:
        torch.distributed.destroy_process_group()


def test_a_checkpoint_is_named_once_it_is_whole_and_older_ones_go_then(tmp_path: Path) -> None:
    completion = Completion(tmp_path, kept=1)
    save(tmp_path, 1).wait()
    completion.begin(1)
    assert not (tmp_path / MARKER).exists()
    completion.look()
    assert (tmp_path / MARKER).read_text() == "1"

    actor = tmp_path / f"{PREFIX}2" / "actor"
    save(tmp_path, 2).wait()
    note = actor / "unfinished_rank_1"  # another worker still writes
    note.touch()
    completion.begin(2)
    completion.look()
    assert (tmp_path / MARKER).read_text() == "1"
    assert (tmp_path / f"{PREFIX}1" / "actor").is_dir()
    note.unlink()
    completion.finish()
    assert (tmp_path / MARKER).read_text() == "2"
    assert not (tmp_path / f"{PREFIX}1" / "actor").exists()


def test_files_that_cannot_be_written_end_the_run_and_say_why(tmp_path: Path) -> None:
    writer = Writer(0)
    actor = tmp_path / f"{PREFIX}1" / "actor"
    with writer.collecting(actor):
        torch.save({}, actor / "nowhere" / MODEL)
    writer.wait()
    completion = Completion(tmp_path, kept=1)
    completion.begin(1)
    with pytest.raises(RuntimeError, match="the checkpoint of step 1 was not written: .*nowhere"):
        completion.look()
    assert not (tmp_path / MARKER).exists()


def test_checkpoints_of_earlier_launches_are_removed_too(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step).wait()
    weightless = tmp_path / f"{PREFIX}0"  # as verl leaves it
    weightless.mkdir()
    (weightless / "data.pt").touch()
    copied = tmp_path / f"{PREFIX}1-copy"
    copied.mkdir()
    resumed = Completion(tmp_path, kept=2)
    save(tmp_path, 3).wait()
    resumed.begin(3)
    save(tmp_path, 4).wait()  # being written: the marker does not name it
    resumed.look()
    left = {path.name for path in tmp_path.glob(f"{PREFIX}*")}
    assert left == {copied.name, *(f"{PREFIX}{step}" for step in (2, 3, 4))}

    everything = Completion(tmp_path, kept=None)
    everything.begin(4)
    everything.look()
    assert {path.name for path in tmp_path.glob(f"{PREFIX}*")} == left


@pytest.mark.parametrize(("kept", "most"), [(1, 2), (2, 2), (3, 3)])
def test_a_resumed_launch_needs_no_more_room_than_the_first(
    tmp_path: Path, kept: int, most: int
) -> None:
    launch = Completion(tmp_path, kept)
    for step in range(1, 8):
        if step == 5:
            launch = Completion(tmp_path, kept)
        launch.make_room()
        save(tmp_path, step).wait()
        assert len([*tmp_path.glob(f"{PREFIX}*")]) <= most
        launch.begin(step)
        launch.look()
    left = {path.name for path in tmp_path.glob(f"{PREFIX}*")}
    assert left == {f"{PREFIX}{step}" for step in range(8 - kept, 8)}
    settings = VerlTrainConfig(keep_checkpoints=kept, save_every=1)
    assert settings.checkpoints_at_once(7) == most


KILLED = """
import os, sys, torch
from pathlib import Path
from harness_verl.saving import Writer

actor = Path(sys.argv[1])
writer = Writer(0)
with writer.collecting(actor):
    torch.save({"weight": torch.ones(4)}, actor / "extra_state_world_size_1_rank_0.pt")
    # No process reads this pipe, so its writer never gets further.
    os.mkfifo(actor / "model_world_size_1_rank_0.pt")
    torch.save({"weight": torch.ones(4)}, actor / "model_world_size_1_rank_0.pt")
torch.save({}, actor.parent / "data.pt")
print("training goes on", flush=True)
writer.wait()
"""


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_writes_goes_on_from_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    completion = Completion(folder.checkpoints, kept=2)
    save(folder.checkpoints, 1).wait()
    completion.begin(1)
    completion.finish()

    cut_off = folder.checkpoints / f"{PREFIX}2"
    command = [sys.executable, "-c", KILLED, str(cut_off / "actor")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "training goes on\n"
    completion.begin(2)
    completion.look()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert [*checkpoints(folder)] == [1]
    assert (cut_off / "data.pt").exists()  # the file that alone said so before
    drop_broken(folder)
    assert not cut_off.exists()
    assert (folder.checkpoints / f"{PREFIX}1" / "actor" / MODEL).exists()
