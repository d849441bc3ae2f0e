"""The contract of every trainer, as a test class to inherit.

    from harness.testing.trainer_contract import TrainerContract

    class TestContract(TrainerContract):
        trainer = "my_trainer"

It trains for two small steps on a CPU, with the bundled policy and questions, and once more,
stopped after the first step and resumed. The tests cannot be overridden; `settings` are
configuration values that the trainer needs. Needs pytest and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from harness.config import Config, load_config
from harness.contracts.trainers import Trainer
from harness.errors import RunFailed, UserError
from harness.plugins import make_trainer
from harness.policies.export import checkpoint_dir, checkpoint_model
from harness.runs.folder import RunFolder
from harness.runs.progress import Progress
from harness.runs.rows import Episode
from harness.runs.tables import logged_table
from harness.testing.data_contract import Contract
from harness.training.checks import check
from harness.training.launch import train

STEPS = 2
SMALL = (
    "device=cpu",
    f"train.steps={STEPS}",
    "train.batch_size=4",
    "train.val_every=0",
    "train.save_every=1",
    "rollout.group_size=2",
    "task.val_limit=4",
)


class TrainerContract(Contract):
    """Requirements of run, record and comparison. Set `trainer` to its name."""

    trainer: ClassVar[str] = ""
    settings: ClassVar[Sequence[str]] = ()
    """Further configuration in the form of `--set`."""

    @classmethod
    def config(cls) -> Config:
        """Return a configuration for the trainer, checked like the command's."""
        assert cls.trainer, "set `trainer` to the trainer's name"
        settings = [*SMALL, f"train.trainer={cls.trainer}", *cls.settings]
        config = load_config("cpu", None, settings, agent="reference_sql")
        check(config)
        return config

    @pytest.fixture(scope="class")
    @classmethod
    def reported_steps(cls) -> list[int]:
        """Collect the steps that the progress of `whole` reports."""
        return []

    @pytest.fixture(scope="class")
    @classmethod
    def whole(
        cls, tmp_path_factory: pytest.TempPathFactory, reported_steps: list[int]
    ) -> RunFolder:
        """Return an uninterrupted run."""
        folder = RunFolder.create(tmp_path_factory.mktemp("whole"), "whole")
        train(
            cls.config(), folder, on_progress=lambda progress: reported_steps.append(progress.step)
        )
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def resumed(cls, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
        """Return a run that was stopped halfway and resumed, and that keeps no checkpoint."""
        config = cls.config()
        config.train.keep_checkpoints = 0
        folder = RunFolder.create(tmp_path_factory.mktemp("resumed"), "resumed")

        def stop(progress: Progress) -> None:
            if progress.step >= 1:
                raise RunFailed("stopped by the contract")

        with pytest.raises(RunFailed, match="stopped by the contract"):
            train(config, folder, on_progress=stop)
        record = folder.read()
        assert (record["status"], record["reason"]) == ("failed", "stopped by the contract")
        train(config, folder, resume=True)
        return folder

    def test_it_is_a_trainer_without_checkpoints_at_first(self, tmp_path: Path) -> None:
        made = make_trainer(self.config())
        assert isinstance(made, Trainer)
        assert dict(made.checkpoints(RunFolder.create(tmp_path, "empty"))) == {}

    def test_a_run_ends_with_every_step_logged_once(self, whole: RunFolder) -> None:
        record = whole.read()
        assert (
            record["status"] == "finished"
            and record["result"]
            and record["result"]["steps"] == STEPS
        )
        assert record["identity"]["train"]["trainer"] == self.trainer
        assert _trained(whole) == [1, 2]

    def test_progress_is_reported_for_every_step_in_order(
        self, whole: RunFolder, reported_steps: list[int]
    ) -> None:
        assert reported_steps == sorted(reported_steps) and set(reported_steps) == set(
            range(STEPS + 1)
        )

    def test_checkpoints_are_there_by_their_step_in_order(self, whole: RunFolder) -> None:
        checkpoints = make_trainer(self.config()).checkpoints(whole)
        assert list(checkpoints) == sorted(checkpoints), checkpoints
        assert set(checkpoints) <= set(range(1, STEPS + 1)), checkpoints
        for path in checkpoints.values():
            assert path.exists(), checkpoints

    def test_a_checkpoint_becomes_a_policy_that_loads(self, whole: RunFolder) -> None:
        made = make_trainer(self.config())
        if type(made).export is Trainer.export or not made.checkpoints(whole):
            pytest.skip("it has no `export`, so its policies cannot be used elsewhere")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = checkpoint_model(whole)
        weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        trained = made.policy(whole, checkpoint_dir(whole)[1]).state_dict()
        assert weights.keys() == trained.keys()
        # An export may have another precision than the trainer.
        for name, exported in weights.items():
            assert exported.allclose(trained[name].to(exported.dtype))
        assert AutoTokenizer.from_pretrained(folder)("a").input_ids

    def test_what_did_not_end_well_is_unscored(self, whole: RunFolder) -> None:
        for row in whole.rows("episodes"):
            assert row["outcome"] == "ok" or row["reward"] is None, row

    def test_a_resumed_run_did_everything_once(self, resumed: RunFolder) -> None:
        record = resumed.read()
        assert (
            record["status"] == "finished"
            and record["result"]
            and record["result"]["steps"] == STEPS
        )
        assert len(record["launches"]) == 2
        assert _trained(resumed) == [1, 2]
        times = Counter(map(_rollout, resumed.rows("episodes")))
        assert set(times.values()) <= {1}

    def test_a_finished_run_has_no_checkpoint_if_none_is_to_be_kept(
        self, resumed: RunFolder
    ) -> None:
        left = make_trainer(self.config()).checkpoints(resumed)
        assert not left, f"checkpoints are outside of folder.checkpoints: {left}"
        with pytest.raises(UserError, match=r"train\.keep_checkpoints=0 keeps none"):
            checkpoint_dir(resumed)
        # A resumed run would begin again and lose its rows.
        for kept in (0, 2):
            longer = self.config()
            longer.train.keep_checkpoints, longer.train.steps = kept, STEPS + 1
            with pytest.raises(UserError, match="has no checkpoint to continue from"):
                train(longer, resumed, resume=True)
        assert _trained(resumed) == [1, 2]

    def test_a_resumed_run_is_the_run_that_nothing_stopped(
        self, whole: RunFolder, resumed: RunFolder
    ) -> None:
        answers, again = _answers(whole), _answers(resumed)
        assert answers == again


def _trained(folder: RunFolder) -> list[int]:
    """Return the completed steps in the run's table.

    A row without `step_s` is of a validation before the first step.
    """
    table = logged_table(folder, "steps")
    assert "step_s" in table.column_names, f"no step was logged with its time: {table.column_names}"
    return [row["step"] for row in table.to_pylist() if row["step_s"] is not None]


def _answers(folder: RunFolder) -> dict[tuple[str, int, str, int], str | None]:
    """Return the answers of a run by rollout, because rollouts end in any order."""
    answers: dict[tuple[str, int, str, int], str | None] = {}
    for row in folder.rows("episodes"):
        answers[_rollout(row)] = row["answer"]
    return answers


def _rollout(row: Episode) -> tuple[str, int, str, int]:
    return row["phase"], row["step"], row["task_id"], row["session"]
