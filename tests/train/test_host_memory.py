"""Memory kept for copies of checkpoints: the same bytes, reused, never before they are written."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra cpu or gpu")

from harness_verl import host_copies, host_memory, saving  # noqa: E402
from harness_verl.host_memory import HostMemory  # noqa: E402
from harness_verl.saving import Writer  # noqa: E402

NAMES = ("model", "optim", "extra_state")


@pytest.fixture(autouse=True)
def enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_machine", lambda: (100 * 2**30, 100 * 2**30))
    monkeypatch.setattr(host_memory, "_groups", list)


class Training:
    """A model with shared weights, its optimizer and its schedule."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            *(torch.nn.Linear(32, 32) for _ in range(3)), torch.nn.BatchNorm1d(32)
        )
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 32)).square().sum().backward()
        self.optimizer.step()
        self.schedule.step()

    def tensors(self) -> Iterator[Any]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        for state in self.optimizer.state.values():
            yield from state.values()

    def save(self, folder: Path) -> None:
        """Save as verl does."""
        folder.mkdir(parents=True, exist_ok=True)
        extra = {
            "lr_scheduler": self.schedule.state_dict(),
            "rng": {"cpu": torch.get_rng_state()},
            "views": [*torch.arange(1000.0).split(100)[3:]],
            "empty": torch.empty(0),
        }
        states = (self.model.state_dict(), self.optimizer.state_dict(), extra)
        for name, state in zip(NAMES, states, strict=True):
            torch.save(state, folder / f"{name}.pt")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.pt")}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return where copies were, and their sizes."""
    found = []
    take = HostMemory.take

    def noted(self: HostMemory, size: int) -> Any:
        storage = take(self, size)
        if size:
            found.append((storage.data_ptr(), size))
        return storage

    monkeypatch.setattr(HostMemory, "take", noted)
    return found


def touched(writer: Writer, training: Training) -> None:
    """Prepare a writer's memory, and wait for that."""
    writer.prepare(training.tensors())
    thread = writer._memory._thread
    assert thread is not None
    thread.join()
    assert writer._memory._kept is not None
    assert writer._memory._touched == len(writer._memory._kept)


@pytest.mark.parametrize("prepared", [True, False])
def test_files_of_two_saves_are_those_of_torch_byte_for_byte(
    tmp_path: Path, prepared: bool
) -> None:
    training, writer = Training(), Writer(0)
    for number in range(2):
        for _ in range(2):
            training.step()
        if prepared and not number:
            touched(writer, training)
        now, later = tmp_path / f"now{number}", tmp_path / f"later{number}"
        training.save(now)
        with writer.collecting(later):
            training.save(later)
        training.step()  # training goes on
        writer.wait()
        assert files(later) == files(now)
        assert len(files(now)) == len(NAMES)
    assert files(tmp_path / "now0")["model.pt"] != files(tmp_path / "now1")["model.pt"]


def test_every_save_takes_the_same_memory(tmp_path: Path, taken: list[tuple[int, int]]) -> None:
    training, writer = Training(), Writer(0)
    training.step()
    touched(writer, training)
    memory = writer._memory._kept
    assert memory is not None
    begin = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    with writer.collecting(tmp_path):
        training.save(tmp_path)
    first = taken.copy()
    taken.clear()
    training.step()
    with writer.collecting(tmp_path):
        training.save(tmp_path)
    writer.wait()
    assert taken == first
    ends = begin
    for place, size in first:
        assert place % host_memory.ALIGNED == 0
        assert place >= ends
        ends = place + size
    assert ends <= begin + len(memory)


def test_a_save_waits_until_the_files_of_the_one_before_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, writer = Training(), Writer(0)
    training.step()
    training.save(tmp_path / "now")
    touched(writer, training)
    disk, save = threading.Event(), saving._save

    def slow(*arguments: Any) -> None:
        assert disk.wait(60)
        save(*arguments)

    monkeypatch.setattr(saving, "_save", slow)
    with writer.collecting(tmp_path / "later"):
        training.save(tmp_path / "later")
    training.step()
    entered = threading.Event()

    def again() -> None:
        with writer.collecting(tmp_path / "second"):
            entered.set()
            training.save(tmp_path / "second")

    second = threading.Thread(target=again)
    second.start()
    assert not entered.wait(0.3)
    disk.set()
    second.join()
    writer.wait()
    assert files(tmp_path / "later") == files(tmp_path / "now")


def test_a_save_that_comes_early_takes_what_is_touched_and_the_rest_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[int, int]]
) -> None:
    training, writer = Training(), Writer(0)
    training.step()
    touch = HostMemory._touch
    monkeypatch.setattr(HostMemory, "_touch", lambda *_: None)
    writer.prepare(training.tensors())
    memory = writer._memory
    assert memory._kept is not None
    memory._touched = 8192
    begin = torch.frombuffer(memory._kept, dtype=torch.uint8).data_ptr()
    monkeypatch.setattr(HostMemory, "_touch", touch)
    for number in range(2):
        training.step()
        taken.clear()
        training.save(tmp_path / "now")
        with writer.collecting(tmp_path / "later"):
            training.save(tmp_path / "later")
        writer.wait()
        assert files(tmp_path / "later") == files(tmp_path / "now")
        inside = [begin <= place < begin + len(memory._kept) for place, _ in taken]
        assert any(inside)
        assert all(inside) == bool(number)
        if memory._thread is not None:
            memory._thread.join()
        assert memory._touched == len(memory._kept)


def test_too_little_memory_means_ordinary_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_memory, "_machine", lambda: (26 * 2**20, 100 * 2**20))
    training, writer = Training(), Writer(0)
    training.step()
    writer.prepare(training.tensors())
    assert writer._memory._kept is None
    assert "less than 25% of the memory would stay available" in caplog.text
    training.save(tmp_path / "now")
    with writer.collecting(tmp_path / "later"):
        training.save(tmp_path / "later")
    writer.wait()
    assert files(tmp_path / "later") == files(tmp_path / "now")


def test_memory_that_others_need_after_a_save_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, writer = Training(), Writer(0)
    training.step()
    touched(writer, training)
    monkeypatch.setattr(host_memory, "_machine", lambda: (24 * 2**20, 100 * 2**20))
    for number in range(2):
        training.save(tmp_path / "now")
        with writer.collecting(tmp_path / "later"):
            training.save(tmp_path / "later")
        assert (writer._memory._kept is None) or not number
        writer.wait()
        assert writer._memory._kept is None
        assert files(tmp_path / "later") == files(tmp_path / "now")


def test_touching_stops_when_another_training_takes_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter([90, 90, 30])
    monkeypatch.setattr(host_memory, "SLACK", 3 * host_memory.TOUCHED_AT_ONCE)
    monkeypatch.setattr(host_memory, "_machine", lambda: (next(left) * 2**22, 100 * 2**22))
    memory = HostMemory()
    monkeypatch.setattr(memory, "stop", lambda: None)
    memory.prepare([])
    assert memory._thread is not None
    memory._thread.join()
    assert memory._kept is None
    assert next(left, None) is None


def test_no_failure_of_the_preparation_reaches_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(size: int) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    memory = HostMemory()
    memory.prepare([SimpleNamespace()])  # type: ignore[list-item]
    assert "AttributeError" in caplog.text
    monkeypatch.setattr(host_memory, "huge_pages", refused)
    memory.prepare([torch.ones(1)])
    assert "Cannot allocate memory" in caplog.text
    memory.begin()
    assert memory.take(4).nbytes() == 4

    memory.keep(mmap.mmap(-1, 4096), touched=0)
    monkeypatch.setattr(host_memory, "_machine", lambda: refused(0))
    memory.end()
    assert memory._kept is None


def test_the_limit_of_a_job_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(host_memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(host_memory, "OWN_GROUP", tmp_path / "own")
    assert host_memory._groups() == []
    (tmp_path / "own").write_text("0::/slurm/job_1/step\n")
    for group, limit in (("slurm/job_1/step", "max"), ("slurm/job_1", "1000")):
        folder = tmp_path / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("700\n")
        (folder / "memory.stat").write_text("anon 1\nactive_file 100\ninactive_file 200\n")
    assert host_memory._groups() == [(600, 1000)]
    monkeypatch.setattr(host_memory, "_machine", lambda: (10_000, 10_000))
    assert host_memory._is_enough(beyond=350)
    assert not host_memory._is_enough(beyond=351)


def test_a_worker_ends_while_memory_is_touched() -> None:
    code = """
import torch
from harness_verl import host_memory
host_memory._is_enough = lambda beyond=0: True
host_memory.SLACK = 2**32
memory = host_memory.HostMemory()
memory.prepare([])
assert memory._thread.is_alive()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_pieces_make_whole_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "PIECE", 7)
    memory, copier = HostMemory(), host_copies.Copier()
    copies = host_copies.HostCopies(memory, copier)
    state = {"a": torch.arange(100.0), "b": torch.arange(6, dtype=torch.int16).view(2, 3).T}
    copied = copies.of(state)
    copies.fill()
    for name, tensor in state.items():
        assert torch.equal(copied[name], tensor)
        assert copied[name].stride() == tensor.stride()


def test_an_engine_prepares_memory_once_its_optimizer_has_a_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("verl", reason="needs the extra plugins")
    from harness_verl.packing import FSDPEngineWithLMHead, PackedEngine

    training = Training()
    steps = iter([lambda: None, training.step, training.step])
    monkeypatch.setattr(FSDPEngineWithLMHead, "optimizer_step", lambda _: next(steps)())
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    sizes = []
    monkeypatch.setattr(
        HostMemory, "prepare", lambda _, states: sizes.append(host_memory.state_bytes(states))
    )
    engine = PackedEngine.__new__(PackedEngine)
    engine.module, engine.optimizer = training.model, training.optimizer
    engine.checkpoint_config = {"async_save": True}
    engine.checkpoint_manager = SimpleNamespace(
        should_save_model=True, should_save_lora_only=False, should_save_optimizer=True
    )
    engine.optimizer_step()  # left out: its gradients were not finite
    assert not sizes
    engine.optimizer_step()
    engine.optimizer_step()
    assert sizes == [host_memory.state_bytes(training.tensors())]
