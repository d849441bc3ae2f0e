"""The reward `judge`: a language model's grades of the answer, each answer judged once."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
import tempfile
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from harness.config import key_in
from harness.errors import ConfigError
from harness.records import Attempt, Task, Verdict
from harness.util.paid_calls import Ledger, Paid
from harness_sql.rewards.asking import FRAME, RUBRIC, JudgeClient, Unjudged, data_block, fits
from harness_sql.rewards.gold import GoldFails, has_query, in_words, result_of
from harness_sql.sqlite.results import Execution, Limits, render

CRITERIA = ("accuracy", "completeness", "clarity", "professionalism")
_SHOWN = Limits(max_rows=50, max_text_chars=4000)
"""Limits of the gold query's result that the judge sees."""


class Judge:
    """Request a number from 0 to 1 for each criterion from an OpenAI-compatible endpoint.

    The value is the mean of the numbers.

    Args:
        endpoint: URL of the API, which usually ends in `/v1`.
        model: The judge's name at the endpoint.
        api_key_env: Name of the environment variable with the endpoint's key. The key itself is
            never
            recorded.
        criteria: Names of the criteria.
        rubric: Meaning of the criteria and how strict to be. The default covers the default
            criteria.
        rubric_file: A file with the rubric, instead of `rubric`.
        temperature: None leaves it to the endpoint.
        max_tokens: Maximum length of one reply; None leaves it to the endpoint.
        max_answer_chars: A longer answer is cut for the judge, with a note.
        timeout_s: Deadline of one answer's grades, including all attempts.
        retries: Number of retries if the endpoint is busy, down or sends an invalid reply.
        concurrency: Number of concurrent requests to the judge in one process.
        request: Additional fields of every request, for example `reasoning_effort`.
        cache: Folder of grades that runs share. By default, each run has its own.
    """

    version = "judge/1"

    def __init__(
        self,
        *,
        endpoint: str,
        model: str,
        api_key_env: str = "",
        criteria: tuple[str, ...] = CRITERIA,
        rubric: str = "",
        rubric_file: Path | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = 1024,
        max_answer_chars: int = 8000,
        timeout_s: float = 60.0,
        retries: int = 4,
        concurrency: int = 8,
        request: dict[str, Any] | None = None,
        cache: Path | None = None,
    ) -> None:
        _check_endpoint(endpoint)
        # The judge's reply is an object with these names, so they must be keys as they are.
        different = bool(criteria) and len(set(criteria)) == len(criteria)
        if not different or not all(re.fullmatch(r"[\w-]+", name) for name in criteria):
            raise ValueError(
                f"criteria={list(criteria)} must be different names of letters and digits"
            )
        if (request or {}).keys() & {"model", "messages", "response_format", "stream"}:
            raise ValueError("request must leave model, messages, response_format and stream alone")
        least = min(1 if max_tokens is None else max_tokens, max_answer_chars, concurrency)
        if least < 1 or retries < 0 or timeout_s <= 0:
            raise ValueError(
                "max_tokens, max_answer_chars, concurrency and timeout_s must be above 0, "
                "retries at least 0"
            )
        system = FRAME.format(rubric=rubric_text(rubric, rubric_file), criteria=", ".join(criteria))
        given = {"temperature": temperature, "max_tokens": max_tokens}
        body = {name: value for name, value in given.items() if value is not None} | (request or {})
        json.dumps(body, allow_nan=False)  # what no request can hold is refused now
        self._criteria = criteria
        self._max_answer_chars = max_answer_chars
        self._asked = [self.version, model, body, system, max_answer_chars]
        self._client = JudgeClient(
            endpoint,
            key_in(api_key_env, "reward.options.api_key_env"),
            {"model": model, **body},
            system,
            criteria,
            timeout_s=timeout_s,
            retries=retries,
            concurrency=concurrency,
        )
        self._model = model
        self._cache = cache.expanduser() if cache is not None else None
        self._ledger = Ledger()
        self._kept: Paid | None = None

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> dict[str, Any]:
        """Return the options that determine a grade, without the judge's address and connection."""
        given = inspect.signature(cls).bind_partial(**options)
        given.apply_defaults()
        resolved = given.arguments
        instructions = FRAME + rubric_text(resolved["rubric"], resolved["rubric_file"])
        names = ("model", "temperature", "max_tokens", "max_answer_chars")
        return {name: resolved[name] for name in names} | {
            "request": dict(resolved["request"] or {}),
            "criteria": list(resolved["criteria"]),
            "rubric": hashlib.sha256(instructions.encode()).hexdigest()[:16],
        }

    def keep_in(self, folder: Path) -> None:
        """Set the folder of the ledger, and of grades unless `cache` names one."""
        self._ledger = Ledger(folder)
        if self._cache is None:
            self._cache = folder / "judged"
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._cache).close()
        except OSError as error:
            raise ConfigError(
                f"reward.options.cache: no grades can be kept in {self._cache} "
                f"({error.strerror}). Name a folder that "
                "can be written, or leave it out"
            ) from error

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the mean of the grades.

        An empty answer gets 0 without a request. The attempt is unscored if the judge gives no
        grades.
        """
        answer = attempt.answer or ""
        # Invisible characters alone (control, format, space) are no answer, and a request costs.
        if not any(unicodedata.category(character)[0] not in "CZ" for character in answer):
            return Verdict(
                0.0,
                "the answer is empty; the judge was not asked",
                dict.fromkeys(self._criteria, 0.0),
            )
        try:
            data = await asyncio.to_thread(self._shown, task, answer)
            key = hashlib.sha256(json.dumps([*self._asked, data_block(data)]).encode()).hexdigest()
            entry, paid = await self._paid().once(key, lambda: self._judged(data))
        except (GoldFails, Unjudged) as error:
            return Verdict(None, str(error))
        if not paid:
            self._ledger.add(self._model, "cached")
        grades = {name: float(entry["grades"][name]) for name in self._criteria}
        reason = ", ".join(f"{name} {grade:g}" for name, grade in grades.items())
        return Verdict(fmean(grades.values()), reason, grades)

    async def _judged(self, data: Mapping[str, str]) -> dict[str, Any]:
        return {"grades": await self._client.grades(data, self._ledger), "model": self._model}

    def _paid(self) -> Paid:
        if self._kept is None:
            if self._cache is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="harness-judged-")
                self._cache = Path(self._temporary.name)
            self._kept = Paid(self._cache, lambda entry: fits(entry.get("grades"), self._criteria))
        return self._kept

    def _shown(self, task: Task, answer: str) -> dict[str, str]:
        """Return the data that the judge sees, by name."""
        data = {"question": task.question, "answer": answer[: self._max_answer_chars]}
        if len(answer) > self._max_answer_chars:
            data["answer_cut"] = (
                f"only the first {self._max_answer_chars} of {len(answer)} characters are shown"
            )
        if has_query(task):
            result = result_of(task)
            shown = Execution(
                True,
                result.columns,
                result.rows[: _SHOWN.max_rows],
                len(result.rows) > _SHOWN.max_rows,
            )
            data |= {"reference_query": task.gold, "reference_result": render(shown, _SHOWN)}
        if words := in_words(task):
            data["reference"] = words
        return data


def rubric_text(rubric: str, file: str | Path | None) -> str:
    """Return the given rubric, from text or file, or the default one.

    Raises:
        ConfigError: Both are given, or the file cannot be read.
    """
    if file is None:
        return rubric.strip() or RUBRIC
    if rubric:
        raise ConfigError(
            "reward.options: judge takes rubric or rubric_file, not both. Leave one out"
        )
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"reward.options.rubric_file: cannot read {file}: {error}. Give a text file"
        ) from error
    if not text:
        raise ConfigError(
            f"reward.options.rubric_file: {file} is empty. "
            "Write what the criteria mean, or leave it out"
        )
    return text


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("endpoint must be a URL such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            "reward.options.endpoint holds a user, password or query, which a record would show. "
            "Put the key into an "
            "environment variable and its name into api_key_env"
        )
