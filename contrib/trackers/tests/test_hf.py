"""Runs as data sets, read back by Hugging Face's own library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import RunFailed, UserError
from harness.mock_model.server import ReceivedRequest
from harness.runs.reading import Run, read_run
from harness.testing.fixtures import StartServer
from harness_sql.tasks.pocket import PocketTasks
from harness_trackers.hf import export

pytest_plugins = ["harness.testing.fixtures"]

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "results" / "gpu-probe" / "seed0"
TOKEN = "hf_" + "a" * 34


@pytest.fixture(scope="module")
def run() -> Run:
    return read_run(RUN)


def header(folder: Path) -> dict[str, Any]:
    _, front, _ = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    found = yaml.safe_load(front)
    assert isinstance(found, dict)
    return found


def harness(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`datasets.load_dataset`, without the network and with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    def load(folder: Path, *which: str) -> Any:
        return datasets.load_dataset(str(folder), *which, cache_dir=str(tmp_path / "cache"))

    return load


def test_datasets_reads_a_training(run: Run, tmp_path: Path, load: Any) -> None:
    folder = tmp_path / "set"
    assert export(run, str(folder)) == f"{folder}; read by datasets.load_dataset({str(folder)!r})"
    episodes = load(folder)
    assert {split: len(rows) for split, rows in episodes.items()} == {
        "train": 5120,
        "validation": 2400,
    }
    val = run.episodes.filter(phase="val")
    assert episodes["validation"]["task_id"][:] == val["task_id"].to_list()
    assert episodes["validation"]["reward"][:] == val["reward"].to_list()
    assert load(folder, "steps")["train"]["val/reward"][:] == run.steps["val/reward"].to_list()


def test_the_card_has_the_identity_and_leaves_the_licence_to_whoever_publishes(
    run: Run, tmp_path: Path
) -> None:
    export(run, str(tmp_path / "without"))
    export(run, str(tmp_path / "with"), licence="apache-2.0")
    assert (
        "license" not in header(tmp_path / "without")
        and header(tmp_path / "with")["license"] == "apache-2.0"
    )
    texts = [
        (tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("without", "with")
    ]
    assert ["No licence is stated" in text for text in texts] == [True, False]
    record = json.loads((tmp_path / "with" / "run.json").read_text(encoding="utf-8"))
    assert record["identity"] == run.record["identity"] and "config" not in record
    assert run.id in texts[0] and run.record["identity"]["model"] in texts[0]
    with pytest.raises(UserError, match=r"--licence Apache 2: use the Hub's format"):
        export(run, str(tmp_path / "third"), licence="Apache 2")


@pytest.mark.slow
def test_calls_of_an_evaluation_are_read_and_no_gold_no_path_and_no_token(
    tmp_path: Path, scripted_server: StartServer, load: Any
) -> None:
    def reply(request: ReceivedRequest) -> str:
        return (
            "THE QUERY IS CORRECT."
            if "You check" in str(request.messages[0]["content"])
            else "```sql\nSELECT 1\n```"
        )

    server = scripted_server(reply, token_ids=False)
    asked = (
        "--agent",
        "reference_sql",
        "--endpoint",
        server.base_url,
        "--limit",
        "6",
        "--runs-dir",
        tmp_path / "runs",
    )
    done = harness("eval", *asked, HF_TOKEN=TOKEN, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    exported = harness(
        "runs", "export", folder, "--to", "hf", "--where", tmp_path / "set", HF_TOKEN=TOKEN
    )
    assert exported.returncode == 0, exported.stderr
    calls = load(tmp_path / "set", "calls")["validation"]
    assert len(calls) == 12 and set(calls["role"]) == {"write_query", "check_query"}
    assert json.loads(calls["messages"][0])[0]["role"] == "system"
    assert not {"prompt_ids", "response_ids", "logprobs"} & set(calls.column_names)
    asked_of = set(load(tmp_path / "set")["validation"]["task_id"])
    golds = [
        json.dumps(task.gold)[1:-1] for task in PocketTasks().load("val") if task.id in asked_of
    ]
    written = [
        path.read_bytes()
        for path in [*(tmp_path / "set").rglob("*"), *folder.rglob("*")]
        if path.is_file()
    ]
    assert not any(TOKEN.encode() in data for data in written)
    rows = [
        json.dumps(row)
        for name in ("episodes", "calls")
        for row in load(tmp_path / "set", name)["validation"]
    ]
    assert len(golds) == 6 and not any(gold in row for gold in golds for row in rows)
    assert str(tmp_path) not in (tmp_path / "set" / "run.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_push_without_token_or_network_is_one_line_and_leaves_the_folder(tmp_path: Path) -> None:
    command = ("runs", "export", RUN, "--to", "hf", "--push", "somebody/rollouts", "--where")
    here = {"HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "COLUMNS": "1000"}
    without = harness(*command, tmp_path / "a", **here)
    assert without.returncode == 1 and without.stderr.count("\n") == 1, without.stderr
    assert (
        "there is no token; set HF_TOKEN" in without.stderr
        and "hf upload somebody/rollouts" in without.stderr
    )
    away = harness(*command, tmp_path / "b", HF_TOKEN=TOKEN, **here)
    assert away.returncode == 1 and away.stderr.count("\n") == 1, away.stderr
    assert (
        "--push somebody/rollouts: http://127.0.0.1:9: " in away.stderr and "refused" in away.stderr
    )
    assert TOKEN not in away.stderr
    for name in ("a", "b"):
        assert (tmp_path / name / "README.md").is_file()
        assert not any(
            TOKEN.encode() in path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--to", "hf", "--push", "a/b/c"), "--push a/b/c: write USER/NAME"),
        (("--to", "tensorboard", "--push", "a/b"), "--push: --to tensorboard has no such option"),
        (
            ("--to", "hf", "--where", str(ROOT / "results")),
            "has files already; remove it, or choose another",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], message: str) -> None:
    done = harness("runs", "export", RUN, *options, COLUMNS="1000")
    assert done.returncode == 2 and message in done.stderr


def test_the_hub_is_asked_as_configured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        RunFailed, match=r"--push me/rollouts: .* The folder .* is complete"
    ) as found:
        export(run, str(tmp_path / "set"), push="me/rollouts")
    assert "\n" not in str(found.value)
