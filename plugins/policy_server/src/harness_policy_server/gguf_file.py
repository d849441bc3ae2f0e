"""Read the header of a GGUF file once, and fast.

gguf's reader makes several views of a memory-mapped array for every token and merge of a
vocabulary, which takes 17 s for 150,000 tokens. transformers reads the header again for the
configuration, for the class of the tokenizer and for the tokenizer itself.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType
from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")


class FastReader(GGUFReader):
    """gguf's reader with the same fields and tensors, read through plain arrays."""

    @property  # type: ignore[override]
    def data(self) -> NDArray[Any]:
        """The bytes of the whole file, memory-mapped."""
        return self._bytes

    @data.setter
    def data(self, mapped: NDArray[Any]) -> None:
        # A view of the base class: numpy runs Python code for every slice of a `memmap`.
        self._bytes = np.asarray(mapped).view(np.ndarray)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """Return the size in bytes, the parts, the value indices and the types of a field."""
        kind = GGUFValueType(raw_type)
        # The struct below reads little-endian files, as nearly all are.
        if kind != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        item_type = self._get(orig_offs, np.uint32)
        length = self._get(orig_offs + 4, np.uint64)
        item_kind = GGUFValueType(item_type[0])
        count = int(length[0])
        begin = orig_offs + 12
        parts = [item_type, length]
        types = [kind, item_kind] if count else [kind]
        if item_kind == GGUFValueType.STRING:
            end = self._read_strings(begin, count, parts)
            indices = list(range(3, 3 + 2 * count, 2))
            return end - orig_offs, parts, indices, types
        numpy_type = self.gguf_scalar_to_np.get(item_kind)
        if numpy_type is None:
            return super()._get_field_parts(orig_offs, raw_type)
        values = self._get(begin, numpy_type, count)
        if len(values) < count:
            raise ValueError(f"an array of {count} values ends after {len(values)}")
        parts += list(values.reshape(count, 1))
        indices = list(range(2, 2 + count))
        return 12 + int(values.nbytes), parts, indices, types

    def _read_strings(self, begin: int, count: int, parts: list[NDArray[Any]]) -> int:
        """Append each string's length and bytes to `parts`; return where the last string ends."""
        position = begin
        # transformers makes a list of every string's bytes, which is much faster from a view of
        # bytes than from an array.
        whole: Any = memoryview(cast(Any, self._bytes))
        for _ in range(count):
            try:
                (size,) = _LENGTH.unpack_from(whole, position)
            except struct.error as error:
                raise ValueError(f"a text at byte {position} is cut off") from error
            text = position + _LENGTH.size
            end = text + size
            if end > len(self._bytes):
                raise ValueError(f"a text at byte {position} is cut off")
            parts.append(self._bytes[position:text].view(np.uint64))
            parts.append(whole[text:end])
            position = end
        return position


@contextlib.contextmanager
def shared_with_transformers(reader: GGUFReader, file: Path) -> Iterator[None]:
    """Make transformers use this reader inside the block instead of reading the file again."""
    original = gguf.GGUFReader

    def opened(path: str | os.PathLike[str]) -> GGUFReader:
        # transformers names the file by its resolved path.
        return reader if os.path.samefile(path, file) else original(path)

    # transformers imports the class from the package each time that it reads a file.
    gguf.GGUFReader = opened  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        gguf.GGUFReader = original  # type: ignore[misc]
