"""Where a policy is loaded from, and what is said of one that is nowhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import load_config
from harness.config.sections import PolicyConfig
from harness.errors import ConfigError
from harness.policies import fetched, resolve, revision_of
from harness.runs.folder import RunFolder
from harness.training.data import load_data
from harness.training.provenance import model_hash
from harness.training.record import run_record
from harness_sql.tasks.pocket import PocketTasks

pytest.importorskip("huggingface_hub", reason="needs the extra cpu or gpu")
FIRST, SECOND = (
    "0123456789abcdef0123456789abcdef01234567",
    "89abcdef0123456789abcdef0123456789abcdef",
)
ASK = """
import json, sys
from harness.config.sections import PolicyConfig
from harness.errors import HarnessError
from harness.policies import fetched
from harness.training.provenance import model_hash

for asked in json.loads(sys.argv[1]):
    try:
        found = fetched(PolicyConfig(**asked))
        print(json.dumps([found, model_hash(found)]))
    except HarnessError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A Hugging Face cache with two revisions of `team/tiny`, the second being its newest."""
    policy = tmp_path / "hub" / "models--team--tiny"
    for commit in (FIRST, SECOND):
        shutil.copytree(resolve("pocket-sql"), policy / "snapshots" / commit)
    (policy / "refs").mkdir()
    (policy / "refs" / "main").write_text(SECOND)
    return tmp_path


def ask(cache: Path, *asked: dict[str, str], **variables: str) -> list[list[str]]:
    environment = {**os.environ, "HF_HOME": str(cache), **variables}
    environment.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-c", ASK, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_what_was_downloaded_is_used_without_a_network_and_known_by_its_commit(
    cache: Path, variables: dict[str, str]
) -> None:
    known = {"path": "team/tiny"}
    newest, pinned, unknown, missing = ask(
        cache,
        known,
        known | {"revision": FIRST},
        known | {"revision": "v9"},
        {"path": "team/other"},
        **variables,
    )
    snapshots = cache / "hub" / "models--team--tiny" / "snapshots"
    assert newest == [str(snapshots / SECOND), f"team/tiny@{SECOND}"]
    assert pinned == [str(snapshots / FIRST), f"team/tiny@{FIRST}"]
    for kind, message in (unknown, missing):
        assert (
            kind == "EnvironmentProblem"
            and "is not in this machine's cache" in message
            and "\n" not in message
        )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such", "there is no folder /no/such"),
        ("./my-policy", r"there is no folder my-policy \(from .+\)"),
        ("runs/x/checkpoints", "there is no folder runs/x/checkpoints"),
    ],
)
def test_a_folder_that_is_not_there_is_named(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fetched(PolicyConfig(path=path))


def test_a_folder_without_a_policy_is_refused_and_one_with_it_is_known_by_its_files(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="has no config.json"):
        fetched(PolicyConfig(path=str(tmp_path)))
    copy = shutil.copytree(resolve("pocket-sql"), tmp_path / "copy")
    assert fetched(PolicyConfig(path=str(copy))) == str(copy)
    with pytest.raises(
        ConfigError, match="policy.revision: pocket-sql is no id on Hugging Face, and has no 'v1'"
    ):
        fetched(PolicyConfig(revision="v1"))
    assert model_hash(str(copy)) == model_hash(fetched(PolicyConfig())) and revision_of(copy) == ""


def test_a_run_goes_on_at_the_revision_that_it_began_with(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = load_config("cpu", None, ["policy.path=team/tiny"], agent="reference_sql")
    folder = RunFolder.create(cache / "runs", "x")
    first = cache / "hub" / "models--team--tiny" / "snapshots" / FIRST
    folder.write(run_record(config, folder, PocketTasks(), [], [], str(first), "cpu"))
    assert folder.read()["identity"]["model"] == f"team/tiny@{FIRST}"
    assert load_data(config, folder).policy == str(first)
    assert load_data(config).policy == str(first.with_name(SECOND))


def test_machines_that_download_a_policy_themselves_are_told_no_revision() -> None:
    cluster = ["policy.path=team/tiny", "ray_address=192.0.2.7:6379"]
    assert load_data(load_config("cpu", None, cluster, agent="reference_sql")).policy == "team/tiny"
    with pytest.raises(
        ConfigError,
        match=r"policy\.revision: nodes of a cluster download the newest team/tiny each",
    ):
        load_data(load_config("cpu", None, [*cluster, "policy.revision=v1"], agent="reference_sql"))
