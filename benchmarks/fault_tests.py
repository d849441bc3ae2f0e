"""Faults that need no training of their own: what is done, what happens, and the tests that do it.

`benchmarks/faults.py` runs them and prints a line each.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900.0
HEAD = "| what was done | what happens | tests, how long | as it should |\n|---|---|---|---|"
_COUNT = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")


@dataclass(frozen=True)
class FaultTest:
    """A fault that tests hold.

    Attributes:
        fault: What is done, for the table.
        outcome: What happens then, if all tests pass.
        tests: Names of tests, as pytest takes them.
    """

    fault: str
    outcome: str
    tests: tuple[str, ...]


_MCP = "contrib/mcp_tools/tests/test_mcp_schemas.py"
_REQUESTS = "tests/policies/test_requests.py"
_PUBLISHED = "tests/policies/test_published.py"
FAULT_TESTS = {
    "requests": FaultTest(
        "requests of 20 MB, with fields of other types, `n` of 1000, and templates that loop",
        "400 with the field's name, before anything is computed",
        (_REQUESTS,),
    ),
    "patterns": FaultTest(
        "a tool's schema has the pattern `^(a+)+$`, or one that is not linear",
        "matched in linear time; the other is refused when tools are listed",
        (
            f"{_MCP}::test_a_result_is_held_against_a_nested_pattern_in_linear_time",
            f"{_MCP}::test_a_pattern_that_is_not_linear_is_refused_when_tools_are_listed",
        ),
    ),
    "references": FaultTest(
        "a tool's schema has a `$ref` to a file or a URL",
        "nothing is fetched or read; the tool is refused by name",
        (
            f"{_MCP}::test_a_file_that_a_schema_refers_to_is_not_read",
            "tests/rollout/test_schemas.py::test_references_are_never_fetched",
        ),
    ),
    "pages": FaultTest(
        "a server lists its tools in pages without an end, or slowly",
        "refused after 64 pages, or when the server's start has taken 20 s",
        (
            f"{_MCP}::test_pages_of_tools_are_joined_and_limited",
            f"{_MCP}::test_all_pages_have_one_deadline",
        ),
    ),
    "sessions": FaultTest(
        "a tool server answers calls of another session, and earlier ones again",
        "no call gets such an answer; each gets its own",
        (f"{_MCP}::test_answers_to_another_session_and_to_earlier_calls_reach_no_call",),
    ),
    "replays": FaultTest(
        "requests reach the store twice, or in another order",
        "each attempt is there once, as it was sent, and no rollout is worked off again",
        (
            "tests/rollout/test_store.py"
            "::test_requests_that_are_sent_again_or_in_another_order_change_no_attempt",
        ),
    ),
    "versions": FaultTest(
        "a runner joins a run of another version of harness",
        "refused in one line with both versions, whatever fields that version has",
        ("tests/rollout/test_joining.py::test_a_run_of_another_version_is_refused_by_its_version",),
    ),
    "wal": FaultTest(
        "a database in WAL mode, open in another program and then closed",
        "unscored while its log holds rows, read once it is closed; no file is changed or made",
        (
            "tests/sql/test_sandbox.py"
            "::test_a_database_in_wal_mode_is_read_once_it_is_closed_and_never_changed",
        ),
    ),
    "pipes": FaultTest(
        "a pipe as a file of questions, or as a database",
        "refused at once",
        (
            "tests/tasks/test_files.py"
            "::test_a_pipe_as_a_file_of_questions_or_as_a_database_is_refused_at_once",
        ),
    ),
    "links": FaultTest(
        "an archive of a task set with symbolic links",
        "no link is made or followed",
        ("tests/tasks/test_spider.py::test_links_in_an_archive_are_not_followed",),
    ),
    "gguf": FaultTest(
        "GGUF files that are cut off, overwritten, or count to 2^60",
        "one line with the file's name; nothing is left",
        (f"{_PUBLISHED}::test_a_damaged_gguf_file_is_one_line_and_leaves_nothing",),
    ),
    "checkpoints": FaultTest(
        "damaged checkpoints and policies",
        "the file is named before anything starts, and an older checkpoint offered",
        (
            "tests/policies/test_export.py"
            "::test_a_damaged_checkpoint_is_named_and_an_older_one_offered",
            "tests/policies/test_export.py::test_a_damaged_policy_is_named_before_anything_starts",
        ),
    ),
    "fetches": FaultTest(
        "a policy is fetched twice at once",
        "both get the same whole folder; nothing else is left",
        (f"{_PUBLISHED}::test_two_who_fetch_a_policy_at_once_get_the_same_whole_one",),
    ),
    "study": FaultTest(
        "a study is interrupted and its folder moved",
        "it continues there: finished runs are not repeated, the interrupted one is resumed",
        (
            "tests/study/test_study.py"
            "::test_an_interrupted_study_whose_folder_is_moved_goes_on_there",
        ),
    ),
    "figures": FaultTest(
        "figures of a run that are NaN or infinite, cells that are no JSON",
        "read as null, by reports, `harness watch` and comparisons alike",
        ("tests/report/test_damaged_figures.py",),
    ),
    "watch": FaultTest(
        "`harness watch` gets requests for spellings of one place, names of 5,000 characters, "
        "256 event streams",
        "one state a place, at most 64 kept; 404; the oldest streams end and a new page opens",
        (
            "tests/report/test_watch.py::test_all_spellings_of_a_place_share_one_state",
            "tests/report/test_watch.py::test_the_states_that_are_kept_are_bounded",
            "tests/report/test_watch.py::test_a_place_whose_name_is_too_long_is_not_there",
            "tests/report/test_watch.py::test_open_event_streams_do_not_lock_a_new_page_out",
        ),
    ),
    "network": FaultTest(
        "a run spans machines and does not say that their network is trusted",
        "refused in one line with the settings",
        ("tests/core/test_network.py",),
    ),
}


def run_fault_tests(names: Iterable[str]) -> list[bool]:
    """Run the tests of each fault, print a line each, and return which passed."""
    print(HEAD, flush=True)
    return [_run(FAULT_TESTS[name]) for name in names]


def _run(one: FaultTest) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *one.tests]
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        last_line = done.stdout.strip().splitlines()[-1:]
        counts = ", ".join(" ".join(found) for found in _COUNT.findall("".join(last_line)))
        passed = done.returncode == 0 and "skipped" not in counts
    except subprocess.TimeoutExpired:
        counts, passed = f"not done within {LIMIT_S:.0f} s", False
    took_s = time.monotonic() - began
    verdict = "yes" if passed else "**no**"
    outcome = one.outcome if passed else "**something else**"
    print(f"| {one.fault} | {outcome} | {counts}, {took_s:.0f} s | {verdict} |", flush=True)
    return passed
