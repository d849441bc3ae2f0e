"""Check weight files before loading: complete, and no larger in memory than on the disk."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

KINDS = (".safetensors", ".bin", ".pt")


def damage(file: Path, *, every_byte: bool = False) -> str:
    """Return the problem of a weight file; empty if none is detected.

    torch writes uncompressed zip archives. A `.bin` file of another format passes.

    Args:
        every_byte: Also verify an archive's checksums, about a second per GiB. torch does not.
    """
    try:
        if file.suffix == ".safetensors":
            return _of_safetensors(file)
        size = file.stat().st_size
        with file.open("rb") as stream:
            if stream.read(2) != b"PK":
                return "it is not torch's, or empty" if file.suffix == ".pt" else ""
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > size:
                return (
                    f"it unpacks from {size / 2**20:,.1f} MiB to {unpacked / 2**20:,.1f}, "
                    "and torch compresses nothing"
                )
            bad = archive.testzip() if every_byte else None
            return f"{bad} in it is not what was written" if bad else ""
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return "it is cut off, or was overwritten"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _of_safetensors(file: Path) -> str:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        return ""  # later code states what to install
    try:
        # Reads its header, which must cover the file to its end.
        with safe_open(file, framework="np"):
            return ""
    except SafetensorError as error:
        return f"it is cut off, or was overwritten: {error}"
