"""verl's platform plug-in for machines without an accelerator (entry point `verl.plugins`).

verl loads this in every process that imports it; it takes effect only under `VERL_PLATFORM=cpu`.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
import verl.utils.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry, get_platform


def _device_module() -> types.ModuleType:
    """Return `torch.cpu` with the memory and random-state calls that verl expects of a device."""
    module = types.ModuleType("harness_cpu_device")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))

    def resident(*_: Any, **__: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def free_and_total(*_: Any, **__: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
    ):
        setattr(module, name, resident)
    for name in (
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "set_device",
        "synchronize",
    ):
        setattr(module, name, nothing)
    extras = {
        "mem_get_info": free_and_total,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "get_device_name": lambda *_, **__: "cpu",
        "get_device_capability": lambda *_, **__: (0, 0),
        "is_bf16_supported": lambda *_, **__: True,
    }
    for name, function in extras.items():
        setattr(module, name, function)
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The CPU as verl's device: gloo for communication, one logical GPU for Ray to schedule by."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never by detection: only VERL_PLATFORM=cpu chooses it

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # Ray is started with one logical GPU, which verl's placement groups ask for

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _single_gloo_backend() -> None:
    """Request gloo once: verl's `cpu:gloo,<device>:<backend>` fails, as it names the CPU twice."""
    initialize = verl.utils.distributed.initialize_global_process_group_ray

    def initialize_once(timeout_second: float | None = None, backend: str | None = None) -> None:
        if backend is None and get_platform().device_name == "cpu":
            backend = "cpu:gloo"
        initialize(timeout_second, backend)

    verl.utils.distributed.initialize_global_process_group_ray = initialize_once


_single_gloo_backend()
