"""Find runs and studies on disk, and read their data for comparisons."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from harness.errors import UserError
from harness.records import AGENT_OUTCOMES
from harness.runs.columns import check_values, checked
from harness.runs.folder import Kind, RunFolder
from harness.runs.monitor import Follower
from harness.runs.progress import Progress
from harness.runs.rows import Trained
from harness.runs.schema import Certificate, RunRecord
from harness.util.formatting import is_graded, printable

if TYPE_CHECKING:
    import polars as pl

KILLED = "killed?"
"""State of a run that is recorded as running but has no process on this machine."""
STARTS_APART = 2**40
"""Distance between the pairing numbers of two starts; seeds are smaller."""


def finite(table: pl.LazyFrame) -> pl.LazyFrame:
    """Return a table with null in place of each number that is not finite."""
    import polars as pl

    number = pl.col(pl.Float32, pl.Float64)
    return table.with_columns(pl.when(number.is_finite()).then(number))


def _by_step(rows: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Return the rows of every step."""
    return {part["step"][0]: part for part in rows.partition_by("step")}


def with_failed(low: float, high: float) -> tuple[float, float]:
    """Return a range of rewards extended by 0, the reward of a rollout that the agent failed."""
    return min(low, 0.0), max(high, 0.0)


@dataclass(eq=False)
class Run:
    """One run as read from its folder.

    Attributes:
        arm: Name of the arm that it belongs to; all runs of an arm differ in their seed only.
        name: Name in messages: the typed path, arm and seed in a study, or the run's folder.
        start: Which of several starts it began with, from 0 (`harness.compare.starts`).
    """

    folder: RunFolder
    record: RunRecord
    arm: str = ""
    name: str = ""
    start: int = 0

    @property
    def id(self) -> str:
        """Return the id in its record; its folder may have been renamed since."""
        return self.record["id"]

    @property
    def seed(self) -> int:
        """Return the seed, which identifies it within its arm."""
        return self.record["seed"]

    @property
    def pairing(self) -> int:
        """Return the number by which runs of two arms are paired: the same start and seed."""
        return self.start * STARTS_APART + self.seed

    @property
    def finished(self) -> bool:
        """Return whether it finished."""
        return self.record["status"] == "finished"

    @cached_property
    def state(self) -> str:
        """The status for people: a run that no process here writes any more is `killed?`.

        Its process may also run on another machine.
        """
        return KILLED if self.abandoned() else self.record["status"]

    def abandoned(self) -> bool:
        """Return whether it is recorded as running, and no process of this machine holds it."""
        if self.record["status"] != "running" or not (self.folder.path / ".lock").is_file():
            return False
        if self.folder.is_held():
            return False
        # It may have finished after its record was read.
        with suppress(UserError):
            return self.folder.read()["status"] == "running"
        return False

    @property
    def trained(self) -> bool:
        """Return whether it is a training, not an evaluation."""
        return self.record["kind"] == "train"

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """One row per rollout; rewards are null if unscored.

        A validation rollout that the agent failed is wrong, including older records that left it
        unscored.
        """
        rows = self._table("episodes")
        if "outcome" not in rows.columns:
            return rows
        import polars as pl

        failed = (
            (pl.col("phase") == "val")
            & pl.col("outcome").is_in(AGENT_OUTCOMES)
            & pl.col("reward").is_null()
        )
        low, high = self.span
        # Scoring stores no such reward (`rollout/scoring.py`), apart from the rounding of a table
        # that was written with fewer bits.
        outside = ~pl.col("reward").is_between(low - 1e-6, high + 1e-6)
        for reward in rows.filter(outside)["reward"].head(1):
            place = printable(str(self.folder.path / "episodes.parquet"))
            raise UserError(
                f"{place} is damaged: a reward is {reward:g}, and the run's rewards are "
                f"{low:g} to {high:g}. Restore it from a copy"
            )
        return rows.with_columns(reward=pl.when(failed).then(0.0).otherwise("reward"))

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row per step."""
        return self._table("steps").sort("step")

    @cached_property
    def gradients(self) -> dict[int, float]:
        """The gradient norm by step."""
        return self.logged("gradient_norm")

    def logged(self, measure: str) -> dict[int, float]:
        """Return a measure of `MEASURES` of trainers, or a column of `steps`, by step."""
        if measure not in self.steps.columns:
            return {}
        return dict(self.steps.drop_nulls(measure).select("step", measure).rows())

    @cached_property
    def transitions(self) -> pl.DataFrame | None:
        """One row per call, with the count of `response_tokens` instead of their ids, or None."""
        import polars as pl

        table = self._table("transitions", drop=("prompt_ids", "logprobs"))
        if "response_ids" in table.columns:
            lengths = pl.col("response_ids").list.len().fill_null(0).cast(int)
            table = table.select(pl.exclude("response_ids"), response_tokens=lengths)
        return table if len(table) else None

    @cached_property
    def trained_by_role(self) -> dict[str, Trained]:
        """Trained transitions and their response tokens by role; empty without transitions."""
        import polars as pl

        if self.transitions is None:
            return {}
        tokens = pl.col("response_tokens").cast(int).sum()
        trained = self.transitions.lazy().filter("trained").group_by("role")
        by_role: dict[str, Trained] = {}
        for role, calls, count in trained.agg(pl.len(), tokens).sort("role").collect().rows():
            by_role[role] = {"transitions": calls, "tokens": count}
        return by_role

    def validation(self, step: int | None = None) -> pl.DataFrame:
        """Return validation episodes of one step, by default of the last validation."""
        by_step = self._validated
        wanted = max(by_step, default=0) if step is None else step
        return by_step.get(wanted, self.episodes.clear())

    def scores(self, step: int | None = None) -> pl.DataFrame:
        """Return the rows of `scored` of one step, by default of the last validation."""
        wanted = max(self._validated, default=0) if step is None else step
        return self._scored_by_step.get(wanted, self.scored.clear())

    @cached_property
    def _scored_by_step(self) -> dict[int, pl.DataFrame]:
        """The rows of `scored` by step."""
        return _by_step(self.scored)

    @cached_property
    def scored(self) -> pl.DataFrame:
        """Mean validation rewards.

        Columns: seed (the pairing number), step, cluster, task_id, difficulty, value.
        """
        import polars as pl

        # The samples of a task are one value: they share the question, so counting each would make
        # the standard error too small.
        keys = ["step", "cluster", "task_id", "difficulty"]
        scored = self.episodes.lazy().filter(phase="val").drop_nulls("reward")
        rows = scored.group_by(keys).agg(value=pl.mean("reward")).sort(keys)
        seed = pl.lit(self.pairing, pl.Int64).alias("seed")
        return rows.select(seed, pl.all()).collect()

    @cached_property
    def _validated(self) -> dict[int, pl.DataFrame]:
        """Validation episodes by step."""
        return _by_step(self.episodes.filter(phase="val"))

    @cached_property
    def training(self) -> pl.DataFrame:
        """Training episodes."""
        return self.episodes.filter(phase="train")

    def validated_tasks(self) -> int:
        """Questions of the run's largest validation."""
        return max(map(len, self._validated.values()), default=0) // self.samples

    @cached_property
    def graded(self) -> bool:
        """Whether its mean reward is no accuracy, by its record or, if older, by its values."""
        if self.record.get("graded", False):
            return True
        return is_graded(self.episodes["reward"].unique())

    @property
    def span(self) -> tuple[float, float]:
        """Lowest and highest reward, including the 0 of rollouts that the agent failed."""
        return with_failed(*self.record["identity"].get("reward_range", (0.0, 1.0)))

    @cached_property
    def parity(self) -> Certificate | None:
        """The agent's certificate: the record's, or a later one of exactly the same agent."""
        from harness.runs.certificates import certificate_of

        record = self.record
        later = record.get("agent_fingerprint")
        return record["parity"] or (certificate_of(record["agent"], later) if later else None)

    @cached_property
    def progress(self) -> Progress:
        """Progress, from the record of a finished run or from the rows of any other."""
        record, result = self.record, self.record["result"]
        known = result.get("steps", 0) if result else 0
        if self.finished and result:
            curve = {int(step): value for step, value in result.get("val_curve", {}).items()}
            # An evaluation has one accuracy and no curve.
            accuracy = result.get("accuracy")
            if accuracy is not None:
                curve[0] = accuracy
            return Progress(
                record["status"],
                step=known,
                total_steps=record["identity"]["steps"],
                val_curve=curve,
                graded=result.get("graded", record.get("graded", False)),
            )
        progress = Follower.of(self.folder, record).look()
        progress.step = max(progress.step, known)
        if self.state != "running":
            progress.remaining_s = None
        return progress

    @property
    def samples(self) -> int:
        """Rollouts per validation task."""
        return self.record["identity"].get("samples", 1)

    def val_curve(self) -> dict[int, float]:
        """Mean validation reward of scored episodes by step, without an unfinished validation."""
        return dict(self._curve)

    @cached_property
    def _curve(self) -> dict[int, float]:
        # An interrupted validation has only the quick questions, so their mean is no point of the
        # curve.
        least = 0 if self.finished else self.record["tasks"]["val"] * self.samples
        curve: dict[int, float] = {}
        for step, rows in sorted(self._validated.items()):
            scored_mean = cast("float | None", rows["reward"].mean())
            if len(rows) >= least and scored_mean is not None:
                curve[step] = scored_mean
        return curve

    def _table(self, kind: Kind, drop: Sequence[str] = ()) -> pl.DataFrame:
        """Return a table with current column names, with null for unknown numbers."""
        import polars as pl

        path = self.folder.path / f"{kind}.parquet"
        shown = printable(str(path))
        advice = (
            "Restore it from a copy, or remove it: "
            "where the run's logs/ still has the rows, they are read instead"
        )
        files = ExitStack()
        try:
            # A resumed run's tables cover earlier launches only, so its logs take precedence.
            running = self.record["status"] == "running"
            has_logs = running and any(self.folder.logs.glob(f"{kind}-*.jsonl"))
            if path.is_file() and not has_logs:
                # Opened here: polars takes a name for a pattern and would read `run1` for `run[1]`.
                file = files.enter_context(path.open("rb"))
                stored = pl.read_parquet_schema(file)
                file.seek(0)
                schema = {name: stored[name] for name in stored if name not in drop}
                table = pl.scan_parquet(file).select(*schema)
            else:
                from harness.runs.tables import logged_table

                logged = pl.DataFrame(logged_table(self.folder, kind))
                shown = printable(str(self.folder.logs / f"{kind}-*.jsonl"))
                advice = "Restore the logs from a copy"
                schema = {name: logged.schema[name] for name in logged.columns if name not in drop}
                table = logged.lazy().select(*schema)
            casts = checked(kind, schema, shown, advice)
            rows = finite(table).with_columns(casts).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"{shown} is damaged, not a Parquet file ({why}). {advice}") from error
        finally:
            files.close()
        check_values(kind, rows, shown, advice)
        return rows


def read_run(path: Path) -> Run:
    """Read the run in a folder.

    Raises:
        UserError: There is none, or its record cannot be read.
    """
    folder = RunFolder.open(path)
    return Run(folder, folder.read(), name=path.name)


def readable(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in folders. Unreadable records are left out, with a remark on stderr."""
    runs = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except UserError as error:
            sys.stderr.write(printable(f"harness: left out: {error}\n"))
    return runs


def find_all(root: Path) -> list[Run]:
    """Return all readable runs below a folder, including studies, oldest first."""
    records = [*root.glob("*/run.json"), *root.glob("*/*/run.json")]
    folders = [record.parent for record in records]
    # Names of runs begin with the time of their start.
    return readable(sorted(folders, key=lambda folder: folder.name))
