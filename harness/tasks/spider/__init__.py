"""Task set `spider`: Spider 1.0, from a folder that `harness data spider` or agent-lightning's example prepared."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from harness.environments.sql.databases import content_hash, fingerprint
from harness.environments.sql.environment import DATABASE, database_of
from harness.errors import TaskSetError
from harness.records import Task
from harness.tasks.spider.layout import DEV_500, PARTS, database_file, default_folder
from harness.tasks.spider.verify import check_prepared, questions_hash, read_manifest

log = logging.getLogger(__name__)

_SPLITS = {
    "train": PARTS[0],
    "train_a": PARTS[0],
    "train_b": PARTS[0],
    "train_b_fit": PARTS[0],
    "train_b_held": PARTS[0],
    "train_others": PARTS[1],
    "dev": PARTS[2],
    "dev_500": DEV_500,
    "val": DEV_500,
}


class SpiderTasks:
    """Spider's questions.

    Splits: `train` (train_spider), `train_others`, `dev`, `dev_500` (a fixed sample of dev; also called `val`).
    `train_a` and `train_b` are `train` cut in two by database, about seven to three by a hash of its name: the first
    is for pre-training a policy, the second to reinforce it on databases that it has not seen. `train_b_fit` and
    `train_b_held` are `train_b` cut in two by gold query, four to one: other questions on the databases trained on.
    Questions whose database is missing or whose gold query is known to fail are left out and counted.

    Args:
        data_dir: The prepared folder; by default `$VERL_SPIDER_DATA_DIR`, or `harness/spider` in the cache folder.
        schema_chars: The longest schema text, in characters.
        style: `create` (CREATE statements) or `compact` (one line a table).
        sample_rows: Rows of each table shown below it.
        use_schema_file: Take the `schema.sql` beside a database where there is one.
        include_others: Add `train_others` to `train`.
    """

    name = "spider"

    def __init__(
        self,
        data_dir: str | None = None,
        schema_chars: int = 8000,
        style: Literal["create", "compact"] = "create",
        sample_rows: int = 0,
        use_schema_file: bool = False,
        include_others: bool = False,
    ) -> None:
        self.folder = (Path(data_dir).expanduser() if data_dir else default_folder()).resolve()
        self.schema_chars = schema_chars
        self.style = style
        self.sample_rows = sample_rows
        self.use_schema_file = use_schema_file
        self.include_others = include_others
        check_prepared(self.folder)
        self._manifest = read_manifest(self.folder)
        self._schemas: dict[str, str] = {}
        self._loaded: dict[str, str] = {}

    def load(self, split: str) -> Sequence[Task]:
        """All tasks of a split, in the order of the official file.

        Raises:
            TaskSetError: The split does not exist, its file is damaged, none of its databases is there, or one has
                changed since it was prepared.
        """
        if split not in _SPLITS:
            raise TaskSetError(f"task set 'spider' has no split {split!r}. Use one of: {', '.join(_SPLITS)}")
        names = ["train", "train_others"] if split == "train" and self.include_others else [split]
        seen: Counter[str] = Counter()
        tasks = [task for name in names for task in self._tasks(name, split, seen)]
        if not tasks:
            raise TaskSetError(f"no question of spider's split {split!r} has its database in {self.folder}/database")
        self._verify({database_of(task) for task in tasks})
        return tasks

    def context(self, task: Task) -> Mapping[str, str]:
        return {"schema": self.schema(task)}

    def schema(self, task: Task) -> str:
        """The schema text of a task's database, cut to `schema_chars`."""
        from harness.environments.sql.schema import schema_text

        path = database_of(task)
        if path not in self._schemas:
            file = Path(path).with_name("schema.sql") if self.use_schema_file else None
            self._schemas[path] = schema_text(
                path,
                limit_chars=self.schema_chars,
                style=self.style,
                sample_rows=self.sample_rows,
                schema_file=file,
            )
        return self._schemas[path]

    def check(self) -> list[str]:
        """Databases whose files changed since their tasks were loaded, as paths below the folder."""
        return sorted(self._below(path) for path, digest in self._loaded.items() if fingerprint(path) != digest)

    def describe(self) -> Mapping[str, Any]:
        """Counts, licence, options, and the hashes of questions and databases; no paths of this machine."""
        manifest = self._manifest
        if manifest is not None:
            databases: dict[str, str] = manifest["databases"]
        else:
            databases = {
                file.relative_to(self.folder).as_posix(): content_hash(str(file))
                for place in ("database", "test_database")
                for file in sorted(self.folder.glob(f"{place}/*/*.sqlite"))
            }
        digest = hashlib.sha256("\n".join(f"{name} {value}" for name, value in sorted(databases.items())).encode())
        parts = (manifest or {}).get("parts", {})
        return {
            "name": self.name,
            "licence": "CC BY-SA 4.0",
            "citation": "Yu et al. 2018, Spider: A Large-Scale Human-Labeled Dataset (EMNLP)",
            "options": {
                "schema_chars": self.schema_chars,
                "style": self.style,
                "sample_rows": self.sample_rows,
                "use_schema_file": self.use_schema_file,
                "include_others": self.include_others,
            },
            "questions_sha256": questions_hash(self.folder),
            "databases": len(databases),
            "databases_sha256": digest.hexdigest(),
            "missing_databases": (manifest or {}).get("missing", []),
            "counts": {
                name: {
                    "questions": part["questions"],
                    "runnable": part["runnable"],
                    "gold_failed": len(part["gold_failed"]),
                    "gold_empty": part["gold_empty"],
                }
                for name, part in parts.items()
            },
        }

    def _verify(self, paths: set[str]) -> None:
        """Refuses databases that are not as the manifest says; what a verdict is on besides them counts, too."""
        manifest = self._manifest or {"databases": {}, "damaged": {}}
        for path in sorted(paths - set(self._loaded)):
            for file in sorted(Path(path).parent.glob("*.sqlite")) if self._manifest else ():
                name = self._below(file)
                if name not in manifest["damaged"] and manifest["databases"].get(name) != content_hash(str(file)):
                    raise TaskSetError(
                        f"{file} is not as it was prepared. Run `harness data spider SOURCE --out {self.folder}` again"
                    )
            self._loaded[path] = fingerprint(path)

    def _below(self, path: str | Path) -> str:
        return Path(path).relative_to(self.folder).as_posix()

    def _tasks(self, name: str, split: str, seen: Counter[str]) -> list[Task]:
        part = _SPLITS[name]
        rows = _read(self.folder / part.parquet)
        failing = self._failing(part.name)
        lost: Counter[str] = Counter()
        tasks: list[Task] = []
        for row in rows:
            db_id, question, gold = row["db_id"], row["question"], row["query"]
            if part is PARTS[0] and name not in _splits_of(db_id, gold):
                continue
            paths = [row["db_path"]] if row.get("db_path") else []
            paths += [database_file(db_id, place) for place in part.folders]
            found = next((path for path in (self.folder / path for path in paths) if path.is_file()), None)
            if found is None or (db_id, gold) in failing:
                lost[db_id] += 1
                continue
            key = hashlib.sha256(f"{db_id}\0{question}\0{gold}".encode()).hexdigest()[:12]
            seen[key] += 1
            tasks.append(
                Task(
                    id=f"{db_id}/{key}" + (f"-{seen[key]}" if seen[key] > 1 else ""),
                    task_set=self.name,
                    split=split,
                    question=question,
                    gold=gold,
                    cluster=db_id,
                    data={DATABASE: str(found)},
                )
            )
        if lost:
            log.warning("spider %s: %d questions cannot be used: %s", name, lost.total(), dict(sorted(lost.items())))
        return tasks

    def _failing(self, name: str) -> set[tuple[str, str]]:
        if self._manifest is None:
            return set()
        part = self._manifest["parts"].get("dev" if name == "dev_500" else name, {})
        return {(item["db_id"], item["query"]) for item in part.get("gold_failed", ())}


def _splits_of(db_id: str, gold: str) -> tuple[str, ...]:
    """The splits that a question of train_spider is in. All questions with one gold query are in the same ones."""
    if hashlib.sha256(db_id.encode()).digest()[0] % 4:
        return "train", "train_a"
    held = hashlib.sha256(f"{db_id}\0{gold}".encode()).digest()[0] % 5 == 0
    return "train", "train_b", "train_b_held" if held else "train_b_fit"


def _read(file: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except FileNotFoundError as error:
        raise TaskSetError(f"{file} is missing. Run `harness data spider SOURCE` again") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskSetError(
            f"{file} is damaged: {str(error).splitlines()[0]}. Run `harness data spider SOURCE`"
        ) from error
    lacking = {"question", "db_id", "query"} - set(rows[0] if rows else ())
    if lacking:
        raise TaskSetError(f"{file} lacks the columns {', '.join(sorted(lacking))}")
    return rows
