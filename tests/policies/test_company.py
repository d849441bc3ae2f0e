"""Neither answers nor gradients depend on what else is computed, to the last bit, whatever sums depend on."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from company import SHAPE, decoder_of, first_difference, first_other_gradient, tiny  # noqa: E402
from torch.utils._python_dispatch import (  # noqa: E402
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
)
from transformers import LlamaConfig, Qwen2Config  # noqa: E402

from harness_policy_server.decoder import Decoder  # noqa: E402
from harness_policy_server.passes import Passes  # noqa: E402

KERNELS = {
    "SSE4.2": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
    },
    "AVX2": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
    "AVX-512": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "ATEN_CPU_CAPABILITY": "avx512",
    },
}
MOVES = (
    *(
        "copy",
        "cat",
        "clone",
        "stack",
        "index",
        "gather",
        "embedding",
        "where",
        "searchsorted",
        "reshape",
        "contiguous",
    ),
    *("slice", "select", "split", "expand", "detach"),
    *("empty", "zeros", "ones", "full", "fill", "zero", "new", "arange", "lift", "_to", "to"),
)
"""How operations begin that only move numbers, or add them up one after the other."""
EXACT = ("add", "sub", "mul", "div", "neg", "sqrt", "threshold")
"""How operations begin that round each number by itself, so that it comes out the same in any shape."""


class Hostile(TorchDispatchMode):
    """Each operation has last bits that depend on every size and stride it sees (a stride of one number is none).

    Args:
        exact: Also those whose numbers are rounded each by itself.
        places: Products also depend on where a row stands.
    """

    def __init__(self, *, exact: bool = True, places: bool = False) -> None:
        super().__init__()
        self.exact, self.places = exact, places

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.name().removeprefix("aten::").split(".")[0]
        tensors = [
            value
            for value in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(value, torch.Tensor)
        ]
        seen = repr(
            (
                name,
                [
                    [pair for pair in zip(one.shape, one.stride(), strict=True) if pair[0] > 1]
                    for one in tensors
                ],
            )
        )
        noise = 1 + zlib.crc32(seen.encode()) % 13 * 2.0**-22
        with torch.utils._python_dispatch._disable_current_modes():
            if name in ("addmm", "addmm_"):  # what a product is added to is not the product's
                product = args[1] @ args[2] * noise
                if self.places:
                    product[-1].mul_(1 + 2.0**-20)
                return torch.add(
                    args[0], product, out=args[0] if name == "addmm_" else kwargs.get("out")
                )
        found = function(*args, **kwargs)
        moves = name.startswith(MOVES) or (not self.exact and name.startswith(EXACT))
        theirs = (
            set() if name.endswith("_") else {one.untyped_storage().data_ptr() for one in tensors}
        )
        with torch.utils._python_dispatch._disable_current_modes():
            for value in () if moves else torch.utils._pytree.tree_leaves(found):
                made = (
                    isinstance(value, torch.Tensor)
                    and value.untyped_storage().data_ptr() not in theirs
                )
                if made and value.dtype == torch.float32 and value.dim():
                    value.mul_(noise)
                    if self.places and value.dim() > 1 and name in ("mm", "linear"):
                        value[-1].mul_(1 + 2.0**-20)
        return found


@pytest.mark.parametrize(
    ("places", "rows"), [(False, 32), pytest.param(True, 1, marks=pytest.mark.slow)]
)
def test_company_changes_no_bit_of_an_answer_whatever_sums_depend_on(
    places: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def among_enemies(act: Callable[..., Any]) -> Callable[..., Any]:
        def acts(*given: Any) -> Any:  # in the decoder's thread, and in the other lanes
            # The decoder's thread is in the mode already when it computes a pass itself. Twice in
            # it, it would add other noise than the other lanes add to the same numbers.
            if any(isinstance(mode, Hostile) for mode in _get_current_dispatch_mode_stack()):
                return act(*given)
            with Hostile(places=places):
                return act(*given)

        return acts

    monkeypatch.setattr(Decoder, "_loop", among_enemies(Decoder._loop))
    for what in ("_read", "_pass"):
        monkeypatch.setattr(Passes, what, among_enemies(getattr(Passes, what)))
    decoder = decoder_of(tiny(LlamaConfig(**SHAPE)))
    try:
        assert first_difference(decoder) == ""
        assert decoder._passes.rows == rows, "where rows are not alike there is one a pass"
    finally:
        decoder.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [LlamaConfig(**SHAPE), Qwen2Config(**SHAPE, tie_word_embeddings=True)]
)
def test_company_changes_no_bit_of_a_gradient_whatever_sums_depend_on(config: Any) -> None:
    with Hostile(exact=False):
        assert first_other_gradient(tiny(config)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kernels", KERNELS)
def test_company_changes_no_bit_under_other_kernels(kernels: str) -> None:
    if kernels == "AVX-512" and not torch.cpu._is_avx512_supported():
        pytest.skip(
            "this processor has no AVX-512, and ATen takes the kernels that it is told to without a look"
        )
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("company.py")],
        env=os.environ
        | KERNELS[kernels]
        | {"OMP_WAIT_POLICY": "PASSIVE"},  # else threads that wait take a busy core
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
