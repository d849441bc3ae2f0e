"""Fetch a policy's files from Hugging Face at one commit, and check their known hashes."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from harness.errors import EnvironmentProblem, how_to_install
from harness.policies.catalogue import Hub
from harness.util.parsing import file_hash


class NotFromHub(EnvironmentProblem):
    """Hugging Face does not give the files of a policy, or gives other ones."""


def download(hub: Hub, into: Path) -> Path:
    """Return a folder with exactly the files of `hub`, their hashes checked.

    Raises:
        NotFromHub: Hugging Face (or `HF_ENDPOINT`) does not give them, or gives other ones.
        EnvironmentProblem: Its client is not installed.
    """
    if find_spec("huggingface_hub") is None:
        raise EnvironmentProblem(
            f"downloading from Hugging Face needs huggingface_hub: {how_to_install('cpu')}"
        )
    from huggingface_hub import snapshot_download

    try:
        at, wanted = os.environ.get("HF_ENDPOINT"), list(hub.files)
        snapshot_download(
            hub.model, revision=hub.commit, allow_patterns=wanted, local_dir=into, endpoint=at
        )
    except Exception as error:  # its errors, httpx's, the system's
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise NotFromHub(f"Hugging Face does not give {hub.pin} ({reason})") from error
    shutil.rmtree(into / ".cache", ignore_errors=True)
    for name, known in hub.files.items():
        if not (into / name).is_file() or file_hash(into / name) != known:
            raise NotFromHub(
                f"{name} of {hub.pin} came with another SHA-256 than the one known here, "
                "or not at all: it is damaged, or not the same file. Nothing of it was kept"
            )
    return into
