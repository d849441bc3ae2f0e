"""`harness doctor --deep`: what breaks only once it is imported, or once hours are spent."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import doctor
from harness.cli import app
from harness.config import load_config
from harness.contracts.findings import Finding
from harness.doctor import deep

DOCTOR = """
from harness.cli import app
from harness.doctor import deep
from harness.plugins import Registry

Registry.specs = lambda self, kind: []
deep.LIBRARIES = (("planted", "planted"),)
app(["doctor", "--deep"])
"""


def found(config: list[str], check: str) -> Finding:
    (one,) = [
        finding
        for finding in deep.try_out(load_config("cpu", None, config))
        if finding.check == check
    ]
    return one


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No agents, and one library, which breaks when it is imported."""
    monkeypatch.setattr("harness.plugins.Registry.specs", lambda self, kind: [])
    (tmp_path / "planted.py").write_text("import json\nfrom json import what_is_not_there\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        deep, "LIBRARIES", (("planted", "planted"), ("left out", "no_such_module_at_all"))
    )
    return tmp_path


def test_an_import_that_fails_is_one_line() -> None:
    done = CliRunner().invoke(app, ["doctor", "--deep", "--json"])
    assert done.exit_code == 1
    (one,) = [row for row in json.loads(done.stdout) if row["check"].startswith("import")]
    assert one["check"] == "import planted" and one["state"] == "problem"
    assert (
        one["found"].startswith("ImportError: cannot import name 'what_is_not_there'")
        and "\n" not in one["found"]
    )


def test_what_is_begun_is_said_before_it_ends(only_these: Path) -> None:
    """An import may take a minute: stderr names it, and stdout has what was found so far."""
    waits = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
    (only_these / "planted.py").write_text(waits)
    command = [sys.executable, "-c", DOCTOR]
    with subprocess.Popen(
        command, cwd=only_these, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        assert doctor.stdout is not None and doctor.stderr is not None
        assert doctor.stderr.readline() == "importing planted (1 of 1)\n"
        assert doctor.stdout.readline().split()[1] == "python"
        (only_these / "go").touch()
        assert "import planted" in doctor.stdout.read()


def test_an_import_that_hangs_is_given_up(
    only_these: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only_these / "planted.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(deep, "IMPORT_S", 1.0)
    assert "not imported within 1 s" in found([], "import planted").found


def test_a_logger_without_a_key_is_found_before_hours_are_spent(
    only_these: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only_these / "wandb.py").touch()
    monkeypatch.setenv("HOME", str(only_these))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(deep, "_installed", lambda module: module != "swanlab")
    without = found(["train.loggers=[wandb, swanlab]"], "logger wandb")
    assert without.state == "problem" and "WANDB_API_KEY" in without.advice
    assert found(["train.loggers=[wandb, swanlab]"], "logger swanlab").found == "not installed"
    (only_these / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (only_these / ".netrc").chmod(0o600)  # else Python does not read it
    assert found(["train.loggers=[wandb]"], "logger wandb").state == "ok"


def test_a_policy_that_may_not_be_downloaded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    class Response:
        headers: dict[str, str] = {}  # noqa: RUF012
        request = None

    def gated(name: str) -> None:
        raise GatedRepoError("gated", response=Response())  # type: ignore[arg-type]

    monkeypatch.setattr(huggingface_hub, "auth_check", gated)
    one = found(["policy.path=meta-llama/Llama-3.2-1B-Instruct"], "policy")
    assert one.state == "problem" and "HF_TOKEN" in one.advice
    assert found([], "policy").state == "ok"


def test_an_installation_without_extras_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name in (*doctor.TRAINING, "vllm", "crewai"):
            raise PackageNotFoundError(name)
        return {"packaging": "24.2", "rich": "13.9.4"}.get(name) or version(name)

    monkeypatch.setattr(doctor, "version", installed)
    found = {one.check: one for one in [*doctor._libraries(), *doctor._overrides()]}
    assert not [one for one in found.values() if one.state == "problem"]
    note = found["training"]
    assert (note.state, note.found) == ("note", "not installed") and "To train: `" in note.advice
    assert "torch" not in found and "packaging" not in found


def test_training_without_its_overrides_or_in_part_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def installed(name: str) -> str:
        if name == "ray":
            raise PackageNotFoundError(name)
        return {"packaging": "24.2", "verl": "0.9.1", "tensordict": "0.10.0"}.get(name) or version(
            name
        )

    monkeypatch.setattr(doctor, "version", installed)
    found = {one.check: one for one in [*doctor._libraries(), *doctor._overrides()]}
    assert found["ray"].state == found["packaging"].state == "problem"
