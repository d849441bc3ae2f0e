"""Published task sets, loaded from a folder that was prepared from their archive."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from harness.contracts.tasks import check_split
from harness.errors import TaskSetError
from harness.records import Task
from harness_sql.sqlite.databases import content_hash, fingerprint
from harness_sql.sqlite.environment import DATABASE, database_of
from harness_sql.tasks.prepared.layout import REST, Layout, Part, database_file
from harness_sql.tasks.prepared.verify import check_prepared, questions_hash, read_manifest
from harness_sql.tasks.schemas import WithSchemas

log = logging.getLogger(__name__)


class PreparedTasks(WithSchemas):
    """The questions of a prepared folder.

    Questions with a missing database or a gold query that is known to fail are skipped and counted.

    Attributes:
        layout: The files of the folder.
        splits: The part of each split.
        citation: The publication.
    """

    name: ClassVar[str]
    layout: ClassVar[Layout]
    splits: ClassVar[Mapping[str, Part]]
    citation: ClassVar[str]
    licence: ClassVar[str] = "CC BY-SA 4.0"

    def __init__(
        self,
        data_dir: str | None,
        schema_chars: int,
        style: Literal["create", "compact"],
        sample_rows: int,
    ) -> None:
        super().__init__(schema_chars, style, sample_rows)
        self.folder = (
            Path(data_dir).expanduser() if data_dir else self.layout.default_folder()
        ).resolve()
        check_prepared(self.folder, self.layout)
        self._manifest = read_manifest(self.folder, self.layout)
        self._loaded: dict[str, str] = {}

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split, in the order of the official file.

        Raises:
            TaskSetError: The split does not exist, its file is missing or damaged, none of its
                questions has
                a database, or a database has changed since it was prepared.
        """
        check_split(self.name, split, self.splits)
        seen: Counter[str] = Counter()
        tasks: list[Task] = []
        for name in self.parts_of(split):
            tasks += self._tasks(name, split, seen)
        if split == REST:
            tasks = self._without_sample(tasks)
        if not tasks:
            raise TaskSetError(
                f"split {split!r} of {self.name} has no question with a database in {self.folder}"
            )
        self._verify({database_of(task) for task in tasks})
        return tasks

    def parts_of(self, split: str) -> Sequence[str]:
        """Return the splits that are read for one split."""
        return [split]

    def belongs(self, split: str, db_id: str, gold: str) -> bool:
        """Return whether a question of a split's part belongs to the split."""
        return True

    def options(self) -> dict[str, Any]:
        """Return the options that affect the tasks."""
        return {
            "schema_chars": self.schema_chars,
            "style": self.style,
            "sample_rows": self.sample_rows,
        }

    def check(self) -> list[str]:
        """Return databases that changed after their tasks were loaded, as relative paths."""
        changed = []
        for path, digest in self._loaded.items():
            if fingerprint(path) != digest:
                changed.append(self._below(path))
        return sorted(changed)

    def describe(self) -> Mapping[str, Any]:
        """Return counts, licence, options and hashes of the data, without local paths."""
        manifest = self._manifest
        if manifest is not None:
            databases: dict[str, str] = manifest["databases"]
        else:
            databases = self._hashed_databases()
        # Sorted, so that the same databases have one hash, however their files were listed.
        lines = [f"{name} {value}" for name, value in sorted(databases.items())]
        counts = {}
        for name, part in (manifest or {}).get("parts", {}).items():
            counts[name] = {
                "questions": part["questions"],
                "runnable": part["runnable"],
                "gold_failed": len(part["gold_failed"]),
                "gold_empty": part["gold_empty"],
            }
        return {
            "name": self.name,
            "licence": self.licence,
            "citation": self.citation,
            "options": self.options(),
            "questions_sha256": questions_hash(self.folder, self.layout),
            "databases": len(databases),
            "databases_sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            "missing_databases": (manifest or {}).get("missing", []),
            "counts": counts,
        }

    def _hashed_databases(self) -> dict[str, str]:
        """Return hashes of all databases, for a folder that something else prepared."""
        hashes = {}
        for place in self.layout.folders:
            for file in sorted(self.folder.glob(f"{place}/*/*.sqlite")):
                hashes[file.relative_to(self.folder).as_posix()] = content_hash(str(file))
        return hashes

    def rows(self, parquet: str) -> list[dict[str, Any]]:
        """Return the rows of one of the folder's Parquet files.

        Raises:
            TaskSetError: It is missing, damaged or lacks a column.
        """
        import pyarrow
        import pyarrow.parquet

        file = self.folder / parquet
        again = f"Run `{self.layout.command} SOURCE` again"
        try:
            table = pyarrow.parquet.read_table(file)
        except FileNotFoundError as error:
            raise TaskSetError(
                f"{file} is missing: the source had none of its questions. {again}, with it"
            ) from error
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskSetError(
                f"{file} is damaged: {str(error).splitlines()[0]}. {again}"
            ) from error
        needed = (
            set(self.layout.columns) - self.layout.optional
            if parquet in self.layout.parquets
            else set()
        )
        if lacking := needed - set(table.column_names):
            raise TaskSetError(f"{file} lacks the columns {', '.join(sorted(lacking))}. {again}")
        rows: list[dict[str, object]] = table.to_pylist()
        return rows

    def _without_sample(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that are not in the sample of their part.

        A repeated question has numbered ids, so that its copies in the sample are the first ones
        here.
        """
        assert self.layout.sample is not None, "only a sample has a rest"
        _, sample = self.layout.sample
        sampled = {task.id for task in self._tasks(sample.name, sample.name, Counter())}
        return [task for task in tasks if task.id not in sampled]

    def _verify(self, paths: set[str]) -> None:
        """Refuse databases that differ from the manifest, including others that verdicts use."""
        manifest = self._manifest or {"databases": {}, "damaged": {}}
        for path in sorted(paths - set(self._loaded)):
            for file in sorted(Path(path).parent.glob("*.sqlite")) if self._manifest else ():
                name = self._below(file)
                if name not in manifest["damaged"] and manifest["databases"].get(
                    name
                ) != content_hash(str(file)):
                    raise TaskSetError(
                        f"{file} is not as it was prepared. "
                        f"Run `{self.layout.command} SOURCE --out {self.folder}` again"
                    )
            self._loaded[path] = fingerprint(path)

    def _below(self, path: str | Path) -> str:
        return Path(path).relative_to(self.folder).as_posix()

    def _tasks(self, name: str, split: str, seen: Counter[str]) -> list[Task]:
        part = self.splits[name]
        failing = self._failing(part.name)
        lost: Counter[str] = Counter()
        tasks: list[Task] = []
        for row in self.rows(part.parquet):
            db_id, question, gold = row["db_id"], row["question"], row["query"]
            if not self.belongs(name, db_id, gold):
                continue
            database = self._database(row, part)
            # A question with a failing gold query can have no verdict, so it is not asked.
            if database is None or (db_id, gold) in failing:
                lost[db_id] += 1
                continue
            key = hashlib.sha256(f"{db_id}\0{question}\0{gold}".encode()).hexdigest()[:12]
            seen[key] += 1
            data = {DATABASE: str(database)}
            for field in ("evidence", "question_id"):
                if row.get(field):
                    data[field] = row[field]
            tasks.append(
                Task(
                    id=f"{db_id}/{key}" + (f"-{seen[key]}" if seen[key] > 1 else ""),
                    task_set=self.name,
                    split=split,
                    question=question,
                    gold=gold,
                    cluster=db_id,
                    difficulty=row.get("difficulty") or "",
                    data=data,
                )
            )
        if lost:
            log.warning(
                "%s %s: %d questions cannot be used: %s",
                self.name,
                name,
                lost.total(),
                dict(sorted(lost.items())),
            )
        return tasks

    def _database(self, row: Mapping[str, Any], part: Part) -> Path | None:
        """Return the first existing file of a row's database, at its own path or in the folders."""
        paths: list[str] = [row["db_path"]] if row.get("db_path") else []
        paths += [database_file(row["db_id"], place) for place in part.folders]
        for path in paths:
            file = self.folder / path
            if file.is_file():
                return file
        return None

    def _failing(self, name: str) -> set[tuple[str, str]]:
        if self._manifest is None:
            return set()
        # Gold queries were run for whole parts, and a sample is drawn from one.
        sample = self.layout.sample
        if sample and name == sample[1].name:
            name = sample[0]
        part = self._manifest["parts"].get(name, {})
        return {(item["db_id"], item["query"]) for item in part.get("gold_failed", ())}
