"""Download the Spider bundle, resuming an interrupted download."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from harness.errors import TaskSetError
from harness_sql.tasks.prepared.prepare import Progress

BUNDLE_ID = "1oi9J1jZP9TyM35L85CL3qeGWl2jqlnL6"
BUNDLE_URL = (
    f"https://drive.usercontent.google.com/download?id={BUNDLE_ID}&export=download&confirm=t"
)
"""The bundle that agent-lightning's Spider example uses."""


def fetch(
    target: Path, url: str = BUNDLE_URL, progress: Progress | None = None, timeout_s: float = 60.0
) -> Path:
    """Download an archive and check the checksum of every file in it.

    A partial download (`<target>.part`) is resumed if the server supports it.

    Raises:
        TaskSetError: The server cannot be reached or does not send a zip file.
    """
    import httpx

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        with httpx.stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=timeout_s
        ) as answer:
            if answer.status_code == 416:  # nothing is left to send
                total = have
            else:
                answer.raise_for_status()
                if "text/html" in answer.headers.get("content-type", ""):
                    raise TaskSetError(f"{url} sent a web page instead of an archive. {_BY_HAND}")
                resumed = answer.status_code == 206
                have = have if resumed else 0
                total = have + int(answer.headers.get("content-length", 0))
                with part.open("ab" if resumed else "wb") as out:
                    for chunk in answer.iter_raw():
                        out.write(chunk)
                        have += len(chunk)
                        if progress is not None:
                            progress("downloading", have, max(total, have))
    except httpx.HTTPError as error:
        raise TaskSetError(
            f"cannot download {url}: {error or type(error).__name__}. Run it again to resume. "
            f"{_BY_HAND}"
        ) from error
    if total and have < total:
        raise TaskSetError(
            f"the download stopped at {have} of {total} bytes. Run it again to resume"
        )
    _check_zip(part)
    os.replace(part, target)
    return target


_BY_HAND = (
    "Or download Spider by hand from https://yale-lily.github.io/spider "
    "and run: harness data spider FILE"
)


def _check_zip(file: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        file.unlink(missing_ok=True)
        raise TaskSetError(
            f"the download is no readable zip file ({error}); it was removed. {_BY_HAND}"
        ) from error
    if damaged:
        file.unlink(missing_ok=True)
        raise TaskSetError(
            f"{damaged} in the download is damaged; the download was removed. Run it again"
        )
