"""A framework that harness does not ship joins by its wheel alone, and leaves without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pydantic_ai_sql"

FRAMEWORK = ("pydantic-ai-slim==2.31.1", "pydantic-graph==2.31.1", "genai-prices", "griffelib", "logfire-api")


def call(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        cwd=EXAMPLE.parent,
    )


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_example_wheel_installs_proves_itself_trains_and_uninstalls(tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    base = sysconfig.get_path("purelib")
    (packages / "zz_base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-q")

    built = call(*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(EXAMPLE))
    if built.returncode:
        pytest.skip(f"no package index to build with: {built.stderr.strip().splitlines()[-1]}")
    wheel = next(tmp_path.glob("harness_pydantic_ai_sql-*.whl"))
    before = json.loads(call(python, "-m", "harness", "plugins", "--json").stdout)
    assert "pydantic_ai_sql" not in [row["name"] for row in before]
    # By name and without dependencies: what else the base environment holds would keep pip's resolver busy for minutes.
    installed = call(*pip, "install", "--no-deps", str(wheel), *FRAMEWORK)
    assert installed.returncode == 0, installed.stderr

    rows = {row["name"]: row for row in json.loads(call(python, "-m", "harness", "plugins", "--json").stdout)}
    assert rows["pydantic_ai_sql"]["usable"] and rows["pydantic_ai_sql"]["frameworks"]["pydantic-ai-slim"]
    # Hypothesis' plugin imports it only at the end, where CPython 3.11.7 now and then fails to compile it (gh-106905).
    plain = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    contract = call(python, "-m", "pytest", "-q", *plain, str(EXAMPLE))
    assert contract.returncode == 0, contract.stdout[-3000:] + contract.stderr[-3000:]
    parity = call(python, "-m", "harness", "parity", "pydantic_ai_sql", HARNESS_CACHE_DIR=str(tmp_path / "cache"))
    assert parity.returncode == 0, parity.stdout[-3000:] + parity.stderr[-2000:]

    assert call(*pip, "uninstall", "-y", "harness-pydantic-ai-sql").returncode == 0
    after = call(python, "-m", "harness", "train", "--plugin", "pydantic_ai_sql", "--ci-fast")
    assert after.returncode == 2 and "no agent called 'pydantic_ai_sql'" in after.stderr
    assert sys.executable != python
