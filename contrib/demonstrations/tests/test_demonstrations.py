"""Real trainings on the CPU, resumed and evaluated, through real workers, gateway and policy server."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from harness import RunFailed, RunFolder, TrainerContract, evaluate, make_trainer
from harness.cli import app
from harness.config import load_config
from harness.errors import ConfigError
from harness.plugins import make_task_set
from harness.policies import resolve
from harness.policies.demonstrations import FILE, demonstrations_in
from harness.policies.export import checkpoint_model
from harness.runs.progress import Progress
from harness.testing.trainer_contract import SMALL
from harness.training.launch import train
from harness.training.provenance import model_hash
from harness_demonstrations.search import Search

OWN = ("train.candidates=2", "train.shots=1", "sampling.max_prompt_tokens=1024")
pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]


def calls_of(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "transitions.parquet")


def search_after(folder: RunFolder, step: int) -> Search:
    text = (folder.checkpoints / f"{step}.json").read_text(encoding="utf-8")
    return Search.parse(json.loads(text)["search"])


class TestContract(TrainerContract):
    trainer = "demonstrations"
    settings = OWN

    @pytest.fixture(scope="class")
    @classmethod
    def shown(cls, whole: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
        """Return a copy of the run in which a candidate with demonstrations won."""
        copy = RunFolder(tmp_path_factory.mktemp("shown") / whole.id)
        shutil.copytree(whole.path, copy.path)
        # Another test may have exported the winner before.
        shutil.rmtree(copy.checkpoints / "2-hf", ignore_errors=True)
        file = copy.checkpoints / "2.json"
        data = json.loads(file.read_text(encoding="utf-8"))
        data["search"]["survivors"] = [1]
        file.write_text(json.dumps(data), encoding="utf-8")
        return copy

    @pytest.fixture(scope="class")
    @classmethod
    def measured(cls, shown: RunFolder) -> Any:
        """Return an evaluation of it."""
        return evaluate(shown.path, limit=4, runs_dir=shown.path.parent / "eval", progress=False)

    def test_step_1_is_without_demonstrations_and_step_2_tries_the_candidates(
        self, whole: RunFolder
    ) -> None:
        search = search_after(whole, 2)
        first = search_after(whole, 1)
        assert first.pool == search.pool and any(search.pool.values())
        assert first.counts == [0] * len(first.candidates)
        assert sum(search.counts) == 8 and len(search.survivors) == 1
        calls = calls_of(whole.path).filter(pl.col("phase") == "train")
        assert calls.filter(pl.col("step") == 1)["demonstrations"].null_count() == len(
            calls.filter(pl.col("step") == 1)
        )
        tried = calls.filter((pl.col("step") == 2) & pl.col("demonstrations").is_not_null())
        assert set(tried["role"]) <= set(search.pool) and len(tried)
        # Records have the agent's own messages: one of the system and one of the user.
        for messages in tried["messages"]:
            assert [message["role"] for message in json.loads(messages)] == ["system", "user"]

    def test_the_shadow_check_sees_what_the_agent_sent(self, whole: RunFolder) -> None:
        shadow = whole.read().get("shadow")
        assert shadow and shadow["checked"] and shadow["identical"] == shadow["checked"], shadow

    def test_steps_have_their_time_and_the_measures_of_the_search(self, whole: RunFolder) -> None:
        steps = pl.read_parquet(whole.path / "steps.parquet").filter(pl.col("step") > 0)
        assert (steps["step_s"] >= steps["rollout_s"]).all() and (steps["rollout_s"] > 0).all()
        search = search_after(whole, 2)
        assert steps["demonstrations/survivors"].to_list() == [len(search.candidates), 1]
        last = steps["demonstrations/leader_mean"].to_list()
        assert last == [None, search.mean(search.leader)]

    def test_an_evaluation_of_the_run_uses_its_demonstrations(
        self, shown: RunFolder, measured: Any
    ) -> None:
        search = search_after(shown, 2)
        calls = calls_of(measured.path)
        for role, demonstrations in search.demonstrations(1).items():
            numbers = calls.filter(pl.col("role") == role)["demonstrations"]
            assert set(numbers) <= {len(demonstrations)}
        assert calls["demonstrations"].max() == 1
        identity = measured.record["identity"]
        assert len(identity["demonstrations"]) == 16
        # The weights are those of the first policy.
        assert identity["model"] == shown.read()["identity"]["model"]

    def test_so_does_one_of_the_exported_folder(self, shown: RunFolder, measured: Any) -> None:
        folder = checkpoint_model(shown)
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        assert (data["version"], data["trainer"]) == (2, "demonstrations")
        trained = {row["task_id"] for row in shown.rows("episodes") if row["phase"] == "train"}
        for role, pairs in data["demonstrations"].items():
            assert len(data["tasks"][role]) == len(pairs) and trained >= {*data["tasks"][role]}
        again = evaluate(
            model=folder,
            agent="reference_sql",
            limit=4,
            settings=["device=cpu", "sampling.max_prompt_tokens=1024"],
            runs_dir=shown.path.parent / "eval",
            progress=False,
        )
        of_run, of_folder = measured.record["identity"], again.record["identity"]
        assert of_folder["demonstrations"] == of_run["demonstrations"]
        columns = ["role", "demonstrations", "prompt_ids", "response_text"]
        key = ["role", "response_text", "messages"]
        assert (
            calls_of(again.path).sort(key).select(columns).to_dicts()
            == calls_of(measured.path).sort(key).select(columns).to_dicts()
        )

    def test_a_task_that_was_demonstrated_does_not_see_its_own_answer(
        self, shown: RunFolder, tmp_path: Path
    ) -> None:
        folder = tmp_path / "policy"
        shutil.copytree(checkpoint_model(shown), folder)
        tasks = make_task_set(shown.config()).load("train")
        # A limit takes the tasks in the order of their hashes.
        first, *_ = sorted(tasks, key=lambda task: sha256(task.id.encode()).hexdigest())
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        data["tasks"] = {role: [first.id] for role in data["tasks"]}
        (folder / FILE).write_text(json.dumps(data), encoding="utf-8")
        of_train = evaluate(
            model=folder,
            agent="reference_sql",
            split="train",
            limit=3,
            settings=["device=cpu", "sampling.max_prompt_tokens=1024"],
            runs_dir=tmp_path,
            progress=False,
        )
        rollouts = pl.read_parquet(of_train.path / "episodes.parquet").select(
            "rollout_id", "task_id"
        )
        calls = calls_of(of_train.path).filter(pl.col("role") == "write_query")
        calls = calls.join(rollouts, on="rollout_id", validate="m:1")
        own = calls.filter(pl.col("task_id") == first.id)
        others = calls.filter(pl.col("task_id") != first.id)
        assert own["demonstrations"].fill_null(0).to_list() == [0]
        assert others["demonstrations"].to_list() == [1, 1]

    def test_a_run_without_any_has_no_trace_of_them(self, whole: RunFolder, tmp_path: Path) -> None:
        bare = evaluate(
            model="pocket-sql",
            agent="reference_sql",
            limit=2,
            settings=["device=cpu"],
            runs_dir=tmp_path,
            progress=False,
        )
        assert "demonstrations" not in bare.record["identity"]
        assert "demonstrations" not in calls_of(bare.path).columns

    def test_the_bare_model_is_not_taken_for_the_policy(self, shown: RunFolder) -> None:
        folder = checkpoint_model(shown)
        assert demonstrations_in(folder).by_role  # otherwise the command would serve it
        served = CliRunner().invoke(app, ["serve", str(folder), "--device", "cpu"])
        assert served.exit_code and isinstance(served.exception, ConfigError)
        assert f"{folder} has {FILE}" in str(served.exception)
        small = ["device=cpu", f"policy.path={folder}"]
        config = load_config("cpu", None, small, agent="reference_sql")
        with pytest.raises(ConfigError, match=f"policy.path: .* has {FILE}"):
            train(config, RunFolder.create(shown.path.parent, "refused"))

    def test_a_first_policy_that_changed_is_not_exported(
        self, shown: RunFolder, tmp_path: Path
    ) -> None:
        copy = RunFolder(tmp_path / "run")
        shutil.copytree(shown.path, copy.path)
        record = copy.read()
        record["identity"]["model"] = "0123456789abcdef"
        copy.write(record)
        with pytest.raises(Exception, match="is another policy"):
            make_trainer(copy.config()).export(
                copy, copy.checkpoints / "2.json", tmp_path / "policy"
            )


def test_a_run_that_is_resumed_halfway_makes_the_same_search(tmp_path: Path) -> None:
    settings = [*SMALL, *OWN, "train.steps=4", "train.val_every=2", "train.candidates=3"]
    config = load_config(
        "cpu", None, [*settings, "train.trainer=demonstrations"], agent="reference_sql"
    )
    whole, resumed = RunFolder.create(tmp_path, "whole"), RunFolder.create(tmp_path, "resumed")
    train(config, whole)

    def stop(progress: Progress) -> None:
        if progress.step >= 3:
            raise RunFailed("stopped by the test")

    with pytest.raises(RunFailed, match="stopped by the test"):
        train(config, resumed, on_progress=stop)
    longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": 8})})
    with pytest.raises(ConfigError, match="the search began with 4 steps"):
        train(longer, resumed, resume=True)
    train(config, resumed, resume=True)
    assert len(resumed.read()["launches"]) == 2
    for step in range(1, 5):
        assert search_after(resumed, step) == search_after(whole, step)
    answers = []
    for folder in (whole, resumed):
        keys = ["phase", "step", "task_id", "session"]
        rows = pl.read_parquet(folder.path / "episodes.parquet").sort(keys)
        answers.append(rows.select(*keys, "answer", "reward").to_dicts())
    assert answers[0] == answers[1]
    assert {(row["phase"], row["step"]) for row in answers[0] if row["phase"] == "val"} == {
        ("val", 0),
        ("val", 2),
        ("val", 4),
    }


def test_a_set_that_does_not_fit_loses_and_the_run_ends_well(tmp_path: Path) -> None:
    """Prompts fit without demonstrations, and not with all of the pool."""
    longest = "sampling.max_prompt_tokens=256"
    settings = [
        *SMALL,
        "train.trainer=demonstrations",
        "train.candidates=2",
        "train.shots=4",
        longest,
    ]
    folder = RunFolder.create(tmp_path, "long")
    train(load_config("cpu", None, settings, agent="reference_sql"), folder)
    search = search_after(folder, 2)
    assert folder.read()["status"] == "finished" and search.survivors == [0]
    rows = pl.read_parquet(folder.path / "episodes.parquet")
    failed = rows.filter(pl.col("outcome") == "prompt_too_long")
    assert len(failed) and set(failed["step"]) == {2} and set(failed["reward"]) == {0.0}
    assert failed["detail"].str.contains("demonstrations were inserted").all()
    assert rows["reward"].null_count() == 0


def test_a_folder_without_demonstrations_has_none() -> None:
    for policy in (resolve("pocket-sql"), "", "some-model at http://127.0.0.1/v1"):
        assert demonstrations_in(policy).by_role == {}
    assert model_hash(resolve("pocket-sql"))
