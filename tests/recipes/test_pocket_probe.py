"""The recipe of `pocket_probe`: the bundled bytes, what can be reached on them, and the training data."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from harness import plugins
from harness.mock_model.server import ReceivedRequest
from harness.testing.fixtures import StartServer
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.sandbox import execute
from harness_sql.tasks.pocket_probe import PocketProbeTasks
from recipes.finetune import scaffolds
from recipes.finetune.__main__ import parse_arguments
from recipes.finetune.play import read as read_transcripts
from recipes.finetune.rows import text_of
from recipes.pocket_probe import samples
from recipes.pocket_probe.drafts import chance, draft, wrong
from recipes.pocket_probe.generate import worlds
from recipes.pocket_probe.oracle import Looker, ceilings, look
from recipes.pocket_probe.played import random_tasks
from recipes.pocket_probe.questions import Schema, Writer, read
from recipes.pocket_probe.storage import PRIORS
from recipes.pocket_sql.samples import Example, shown

REPO = Path(__file__).resolve().parents[2]
BOUND = 0.45


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> PocketProbeTasks:
    return PocketProbeTasks(cache_dir=str(tmp_path_factory.mktemp("pocket_probe")))


@pytest.fixture(scope="module")
def drawn() -> list[Example]:
    return [example for index in range(150) for example in samples.examples(1, index)]


@pytest.mark.slow
def test_the_command_finds_the_bundled_bytes_unchanged() -> None:
    command = [sys.executable, "-m", "recipes.pocket_probe.generate", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("split", ["dev", "test"])
def test_no_single_draft_reaches_the_bound_and_three_turns_reach_all(
    tasks: PocketProbeTasks, split: str
) -> None:
    """Drafts of an oracle of schema text, question and prior; a policy of the shown, in the agent and the sandbox."""
    found = ceilings(tasks, split)
    reached = found["all"]
    assert (
        max(
            reached[name]
            for name in ("draft", "listing", "decoding", "expected", "expected_listing")
        )
        <= BOUND
    )
    assert all(row["looks"] >= 0.95 for row in found.values())
    assert found["none"]["draft"] == 1
    for trap in ("column", "date", "key", "rank", "unit", "word"):
        assert found[trap]["draft"] <= BOUND


def test_no_single_draft_reaches_the_bound_in_training(tasks: PocketProbeTasks) -> None:
    every = [
        (task, read(task.question, Schema(tasks.schema(task)))) for task in tasks.load("train")
    ]
    right = [evaluate(database_of(task), task.gold, draft(plan)).match for task, plan in every[::4]]
    assert sum(map(bool, right)) / len(right) <= BOUND
    assert sum(chance(plan, listing=True) for _, plan in every) / len(every) <= BOUND


def test_the_drafts_settle_for_the_most_probable_form_of_everything(
    tasks: PocketProbeTasks,
) -> None:
    """No other choice of one form of everything is more probable: what makes the draft the best of its kind."""
    assert (
        max(PRIORS["key"]["as it is"] + PRIORS["key"][name] for name in ("small letters", "spaces"))
        == 0.4
    )
    for kind, shares in PRIORS.items():
        assert sum(shares.values()) == pytest.approx(1) and (
            max(shares.values()) <= 0.4 or kind == "count"
        )
    for task in tasks.load("dev")[::9]:
        plan = read(task.question, Schema(tasks.schema(task)))
        assert 0 < chance(plan) <= chance(plan, listing=True) <= 1
        assert (chance(plan) == 1) == (not plan.traps())


def test_questions_are_read_from_their_text_as_gold_means_them(tasks: PocketProbeTasks) -> None:
    """Gold is what the text comes to under the forms that were drawn, and drafts that are wrong in one thing differ."""
    forms = {world.domain.db_id: world.forms for _, world, _ in worlds()}
    judged = 0
    for split in PocketProbeTasks.splits:
        for task in tasks.load(split)[::23]:
            right = Writer(forms[task.cluster])
            plan = read(task.question, Schema(tasks.schema(task)))
            assert right.query(plan) == task.gold and "+".join(plan.traps()) == task.data["traps"]
            for other in {sql for sql in wrong(plan, right) if sql != task.gold}:
                judged += 1
                assert evaluate(database_of(task), task.gold, other).match is False, (
                    task.id,
                    other,
                )
    assert judged > 500


def test_a_look_is_shown_whole(tasks: PocketProbeTasks) -> None:
    """Within the sandbox's rows and characters, no column of a look is left out and no cell is cut."""
    for task in tasks.load("dev"):
        plan = read(task.question, Schema(tasks.schema(task)))
        if plan.traps():
            text = execute(database_of(task), look(plan)).text
            assert (
                "columns are shown" not in text and "…" not in text and len(text.splitlines()) == 7
            )


@pytest.mark.slow
def test_the_looking_policy_is_right_through_harness_eval(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    policy = Looker()

    def script(request: ReceivedRequest) -> str:
        return policy.reply(request.messages)

    server = scripted_server(script, token_ids=False)
    command = [
        *(
            sys.executable,
            "-m",
            "harness",
            "eval",
            "--plugin",
            "reference_sql",
            "--preset",
            "pocket-probe",
        ),
        *("--endpoint", server.base_url, "--limit", "12", "--runs-dir", str(tmp_path), "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (
        record["result"]["accuracy"] == 1
        and record["result"]["scored"] == 12
        and "reading" not in record
    )
    assert record["config"]["task"]["val_split"] == "dev" and record["config"]["max_turns"] == 3


def test_no_bundled_database_is_trained_on() -> None:
    for start in (0, 50_000, 10**9):
        for index in range(start, start + 150):
            world, _ = samples.world_of(1, index)
            assert not {table.name for table in world.domain.tables} & samples.bundled_tables()
            world.close()


@pytest.mark.slow
def test_examples_follow_from_the_seed_and_go_on_as_the_program_does(drawn: list[Example]) -> None:
    assert (
        list(samples.examples(1, 7)) == list(samples.examples(1, 7)) != list(samples.examples(2, 7))
    )
    assert set(Counter(e.prompt.role for e in drawn)) == {
        "write_query",
        "check_query",
        "rewrite_query",
    }
    for before, after in itertools.pairwise(drawn):
        if before.prompt.role == "check_query":
            assert before.reply.endswith((APPROVED, REJECTED))
            assert (after.prompt.role == "rewrite_query") == (
                not PROMPTS.approves(before.reply)
            ) or (after.prompt.role == "write_query")
        else:
            assert PROMPTS.parse_sql(before.reply).startswith("SELECT")
        if after.prompt.role == "rewrite_query":
            assert after.prompt.user == before.prompt.user + f"\n\nCheck:\n{before.reply}"


def test_remarks_after_a_look_follow_from_the_result_that_is_shown(drawn: list[Example]) -> None:
    """The checker of the data knows no more than its prompt: the shown forms are those that its remark names."""
    looked = [e for e in drawn if e.prompt.role == "check_query" and e.reply.startswith("A look. ")]
    assert len(looked) > 30
    for example in looked:
        for column, form in re.findall(r"(\w+): ([a-z ]+?)(?: of \w+-)?[.;]", example.reply):
            shown_cells = example.prompt.user.split("\n\nResult:\n")[1].splitlines()
            cells = [
                line.split(" | ")[shown_cells[0].split(" | ").index(column)]
                for line in shown_cells[1:6]
            ]
            if form == "hundredths":
                assert 1000 <= min(map(int, cells)) <= 9000
            if form == "bare":
                assert all(cell.isdigit() for cell in cells)
            assert form in {name for shares in PRIORS.values() for name in shares}


def test_training_data_has_looks_guesses_and_repairs(drawn: list[Example]) -> None:
    replies = Counter(
        "look"
        if " WHERE " not in e.reply and "(" not in e.reply and "LIMIT" not in e.reply
        else "query"
        for e in drawn
        if e.prompt.role == "write_query"
    )
    assert 0.06 < replies["look"] / sum(replies.values()) < 0.18
    repaired = [e for e in drawn if e.prompt.role == "rewrite_query"]
    assert len(repaired) > 60


def test_a_teacher_of_scaffolds_answers_with_gold_only_after_a_look(
    tasks: PocketProbeTasks,
) -> None:
    """Agents of other scaffolds are taught what the course teaches, on bundled questions: what can be known."""
    firsts: list[bool] = []
    answers: dict[bool, list[bool]] = {True: [], False: []}
    for task in tasks.load("train")[::8]:
        replies = samples.taught(task, tasks.context(task)["schema"], Random(task.id))
        plan = read(task.question, Schema(tasks.context(task)["schema"]))
        queries, verdicts = replies[::2], replies[1::2]
        assert len(queries) - len(verdicts) in (0, 1) and len(replies) <= 5
        assert [PROMPTS.approves(verdict) for verdict in verdicts[:-1]] == [False] * len(
            verdicts[:-1]
        )
        assert len(replies) == 5 or PROMPTS.approves(verdicts[-1])
        sql = [PROMPTS.parse_sql(query) for query in queries]
        firsts.append(evaluate(database_of(task), task.gold, sql[0]).match == 1)
        for before, verdict, after in zip(sql, verdicts, sql[1:], strict=False):
            looked = bool(plan.traps()) and before == look(plan)
            assert verdict.startswith("A look. ") == looked
            answers[looked].append(evaluate(database_of(task), task.gold, after).match == 1)
    after_a_look, blind = (sum(answers[looked]) / len(answers[looked]) for looked in (True, False))
    assert 0.12 < sum(firsts) / len(firsts) < 0.35 and len(answers[True]) > 20
    assert after_a_look > 0.6 and blind < 0.35


def test_a_world_shows_its_forms_to_who_looks() -> None:
    """On random databases, too: what the policy of three turns would answer is right."""
    asked = 0
    for index in range(30):
        world, rng = samples.world_of(3, index)
        schema = Schema(world.domain.schema_text())
        for _ in range(4):
            if (found := samples.draw(world, schema, rng, tries=8)) is not None:
                _, plan = found
                asked += 1
                forms = samples.understood(plan, shown(world, look(plan)))
                assert Writer(forms).query(plan) == Writer(world.forms).query(plan)
        world.close()
    assert asked > 60


def test_the_conversations_themselves_leave_room_and_carry_signal() -> None:
    """What a policy imitates that has learnt them: about a third right, and most groups of eight are mixed."""
    found = samples.reached(seed=5, worlds=12)
    assert (
        0.12 < found["draft"] < 0.32
        and 0.25 < found["three_turns"] < 0.45
        and found["mixed_groups"] > 0.6
    )


def test_random_questions_are_a_task_set_without_a_bundled_table(
    tmp_path: Path, tasks: PocketProbeTasks
) -> None:
    found = random_tasks(tmp_path, seed=1, most=25)
    assert len(found) == 25 and len({task.cluster for task in found}) > 2
    for task in found:
        schema = tasks.context(task)["schema"]
        plan = read(task.question, Schema(schema))
        assert evaluate(database_of(task), task.gold, task.gold).match is True
        assert not {plan.schema.parent, plan.schema.child} & samples.bundled_tables()
        replies = samples.taught(task, schema, Random(task.id))
        assert replies[0].startswith("```sql")
    made = {
        example.prompt.user.split("\n\nQuestion")[0]
        for at in range(50)
        for example in samples.examples(1, at)
    }
    assert not made & {f"Schema:\n{tasks.context(task)['schema']}" for task in found}


@pytest.mark.slow
def test_a_policy_for_scaffolds_learns_made_and_played_conversations(tmp_path: Path) -> None:
    agents = [
        one
        for one in ("reference_sql", "openai_agents_sql_idiomatic")
        if one in plugins.agents_of()
    ]
    kept = tmp_path / "transcripts.jsonl"
    command = [
        "--on",
        "pocket_probe",
        "--preset",
        "pocket-probe",
        "--split",
        "random",
        "--held-out",
        "dev",
    ]
    command += [
        "--agents",
        ",".join(agents),
        "--limit",
        "12",
        "--workers",
        "1",
        "--transcripts",
        str(kept),
    ]
    arguments = parse_arguments([*command, "--out", str(tmp_path / "policy")])
    with scaffolds.course(arguments, None) as course:
        rows = list(course.source(0))
        played = [row for row in rows if isinstance(row, scaffolds.Row)]
        assert len(rows) > len(played) > 0
        texts = "\n".join(map(text_of, played))
        tokenizer = course.small.tokenizer()
    assert all(f"world_{number:03d}" not in texts for number in range(300))
    for agent in agents:
        (call, *_) = (
            one
            for transcript in read_transcripts(kept)
            if transcript.agent == agent
            for one in transcript.calls
        )
        tokens = tokenizer.tokenize(
            tokenizer.apply_chat_template(call.messages, tools=call.tools or None, tokenize=False)
        )
        system = str(call.messages[0]["content"]).splitlines()
        assert set(system) <= set(tokens)
        assert not call.tools or any(token.startswith('{"type": "function"') for token in tokens)
    assert not {APPROVED, REJECTED} & set(tokenizer.get_added_vocab())
