"""Host memory for copies of a training's state: kept between checkpoints, in huge pages, touched.

The kernel hands out memory on first touch, page by page, and clears every page. For fresh memory
this takes longer than the copy itself (`benchmarks/checkpoint_copy.py`). So a worker maps the
memory once, in huge pages where the system has them, and a thread touches it while training goes
on. Where too little memory would stay available, every copy has ordinary memory that is freed once
its file is written.
"""

from __future__ import annotations

import atexit
import logging
import mmap
import os
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch.distributed.tensor import DTensor

RESERVE = 0.25
"""Share of the machine's or the job's memory that stays available; otherwise none is kept."""
TOUCHED_AT_ONCE = 64 * 2**20
"""Bytes touched between two checks of available memory, in less than a tenth of a second."""
ALIGNED = 64
"""Every copy begins at a multiple of this number of bytes, as in torch's own memory."""
SLACK = 64 * 2**20
"""Bytes for the content of a checkpoint other than weights and the state of the optimizer."""
SHORT = f"less than {RESERVE:.0%} of the memory would stay available"
LOCAL_WORKERS = "RAY_LOCAL_WORLD_SIZE"
"""Environment variable in which verl states the number of workers on this machine."""
UNLIMITED = 2**60
"""A memory group of version 1 without a limit states one near 2**63 bytes."""
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")

logger = logging.getLogger(__name__)


class HostMemory:
    """Memory for the copies of one checkpoint after another; without `prepare`, ordinary memory."""

    def __init__(self) -> None:
        self._kept: mmap.mmap | None = None
        self._touched = 0
        self._used = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self, states: Iterable[torch.Tensor]) -> None:
        """Map memory, and start a thread that touches it; does nothing if memory is short.

        Args:
            states: The tensors of a checkpoint; only their sizes count.
        """
        try:
            size = state_bytes(states) + SLACK
            if not _is_enough(beyond=size):
                self._give_up(f"{SHORT} beyond a checkpoint's {size / 2**30:.1f} GiB")
                return
            self.keep(huge_pages(size), touched=0)
            self._start()
        except Exception as error:
            # This only saves time: no failure here may end a training.
            self._give_up(f"{type(error).__name__}: {error}")

    def keep(self, memory: mmap.mmap, touched: int) -> None:
        """Take from the touched beginning of this memory from now on."""
        self._kept, self._touched = memory, touched

    def stop(self) -> None:
        """Stop touching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        atexit.unregister(self.stop)

    def begin(self) -> None:
        """Take from the beginning again; nothing may use what was taken before."""
        self.stop()
        self._used = 0

    def take(self, size: int) -> torch.UntypedStorage:
        """Return memory of exactly `size` bytes: kept and touched memory as long as there is some.

        In a virtual machine, untouched huge pages can take longer than ordinary memory
        (`benchmarks/checkpoint_copy.py`).
        """
        end = self._used + size
        if size == 0 or self._kept is None or end > self._touched:
            return torch.UntypedStorage(size)
        # `torch.save` writes whole storages, so every copy has one of its own.
        part = torch.frombuffer(self._kept, dtype=torch.uint8, offset=self._used, count=size)
        self._used = -(-end // ALIGNED) * ALIGNED
        return part.untyped_storage()

    def end(self) -> None:
        """Touch what a checkpoint came too early for; keep no memory if little is available."""
        if self._kept is None:
            return
        try:
            if not _is_enough(beyond=len(self._kept) - self._touched):
                self._give_up(SHORT)
            elif self._touched < len(self._kept):
                self._start()
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _start(self) -> None:
        self._stop.clear()
        thread = threading.Thread(
            target=self._touch, args=(self._kept,), name="checkpoint-memory", daemon=True
        )
        thread.start()
        self._thread = thread
        # No thread may be in torch's code when the interpreter ends.
        atexit.register(self.stop)

    def _touch(self, memory: mmap.mmap) -> None:
        try:
            pages = torch.frombuffer(memory, dtype=torch.uint8)
            while self._touched < len(pages) and not self._stop.is_set():
                if not _is_enough(beyond=len(pages) - self._touched):
                    self._give_up(SHORT)
                    return
                part = pages[self._touched : self._touched + TOUCHED_AT_ONCE]
                # torch does not hold the interpreter's lock meanwhile.
                part[:: mmap.PAGESIZE].zero_()
                self._touched += len(part)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        # The memory is unmapped when no copy uses it any more.
        self._kept = None
        logger.warning("no memory is kept for checkpoints, so saving takes longer: %s", reason)


def huge_pages(size: int) -> mmap.mmap:
    """Return new private memory, in huge pages where the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def state_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that this worker holds of tensors."""
    sizes = 0
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        sizes += -(-local.nbytes // ALIGNED) * ALIGNED
    return sizes


def _is_enough(beyond: int = 0) -> bool:
    """Return whether the reserve stays available if each worker uses `beyond` further bytes."""
    needed = beyond * int(os.environ.get(LOCAL_WORKERS, "1"))
    limits = [_machine(), *_groups(), *_groups_of_version_1()]
    return all(available - needed >= RESERVE * total for available, total in limits)


def _machine() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _groups_of_version_1() -> list[tuple[int, int]]:
    """Return available and total bytes of this process's memory group of version 1, if any."""
    found = []
    with suppress(OSError, ValueError):
        (own,) = re.findall(r"^\d+:memory:/(.*)$", OWN_GROUP.read_text(encoding="utf-8"), re.M)
        # In a container the group's own folder is mounted as the root.
        for group in (CGROUPS / "memory" / own, CGROUPS / "memory"):
            if (group / "memory.limit_in_bytes").is_file():
                limit = int((group / "memory.limit_in_bytes").read_text())
                used = int((group / "memory.usage_in_bytes").read_text())
                numbers = _numbers(group)
                files = numbers.get("total_active_file", 0) + numbers.get("total_inactive_file", 0)
                found.append((limit - used + files, limit))
    return [(available, limit) for available, limit in found if limit < UNLIMITED]


def _numbers(group: Path) -> dict[str, int]:
    rows = (row.split() for row in (group / "memory.stat").read_text().splitlines())
    return {name: int(value) for name, value in rows}


def _groups() -> list[tuple[int, int]]:
    """Return available and total bytes of this process's control groups (v2) that have a limit."""
    found = []
    with suppress(OSError, ValueError):
        own = OWN_GROUP.read_text(encoding="utf-8").strip().rpartition("::")[2].lstrip("/")
        for group in [CGROUPS / own, *(CGROUPS / own).parents]:
            limit = group / "memory.max"
            if not limit.is_file() or (text := limit.read_text().strip()) == "max":
                continue
            used = int((group / "memory.current").read_text())
            numbers = _numbers(group)
            # Files that the kernel has read or written count as used, and it can drop them.
            files = numbers.get("active_file", 0) + numbers.get("inactive_file", 0)
            found.append((int(text) - used + files, int(text)))
    return found
