"""One recipe makes any policy: packed rows, transcripts of any agent, and the command as a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from argparse import Namespace
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness import plugins
from harness.errors import ConfigError
from harness.policies import resolve
from harness_policy_server.hermes import for_template
from harness_sql.self_correcting.prompts import APPROVED, REJECTED
from recipes.finetune import rows, scaffolds
from recipes.finetune.__main__ import main, parse_arguments
from recipes.finetune.play import read

COMMAND = [
    sys.executable,
    "-m",
    "recipes.finetune",
    "--on",
    "pocket",
    "--steps",
    "2",
    "--limit",
    "2",
    "--workers",
    "1",
]
COMMAND += ["--batch-tokens", "1024", "--blocks-per-group", "1"]
AGENTS = [
    "reference_sql",
    "openai_agents_sql_idiomatic",
    "autogen_sql_idiomatic",
    "reference_tools",
]


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Imported when the first of these tests begins: not by every process that only collects them."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tiny(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with the tokenizer of `pocket-sql`, whose chat template shows no tools."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(resolve("pocket-sql"))
    shape = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, **shape, **ends)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(command: list[Any], cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HARNESS_CACHE_DIR": str(cache)}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment
    )


def group_of(lengths: list[int], learnt: list[list[int]]) -> rows.Group:
    tokens = array(
        "H", [10 * row + at + 1 for row, length in enumerate(lengths) for at in range(length)]
    )
    marks = b"".join(
        bytes(at in some for at in range(n)) for n, some in zip(lengths, learnt, strict=True)
    )
    return rows.Group.of([rows.Block(tokens.tobytes(), marks, lengths)])


def test_batches_hold_every_row_once_and_no_target_of_another_row() -> None:
    group = group_of([4, 3, 9, 2], [[2, 3], [0, 2], [5, 8], [1]])
    batches = list(group.batches(Random(1), 8, "cpu"))
    found = Counter()
    for batch in batches:
        ids, positions, targets = (
            batch.ids[0].tolist(),
            batch.positions[0].tolist(),
            batch.targets.tolist(),
        )
        assert batch.ends.tolist()[-1] == len(ids) and (len(ids) <= 8 or len(batch.ends) == 2)
        for at, target in enumerate(targets):
            if (
                target != -100
            ):  # a row's first token is never a target, though the second row asks for it
                assert (
                    target == ids[at + 1] == ids[at] + 1 and positions[at + 1] == positions[at] + 1
                )
                found[target] += 1
    assert found == Counter([3, 4, 13, 26, 29, 32])
    assert Counter(id for batch in batches for id in batch.ids[0].tolist()) == Counter(
        group.tokens.tolist()
    )


def test_a_packed_step_has_the_gradient_of_rows_one_by_one(tiny: Path, torch: Any) -> None:
    from recipes.finetune import fit
    from recipes.finetune.policy import load

    policy = load(str(tiny))
    group = group_of([9, 6, 4], [[6, 7, 8], [5], [2, 3]])
    (batch,) = group.batches(Random(1), 100, "cpu")
    fit._work(policy.model)
    packed = fit.loss_of(policy.model, batch)
    packed.backward()
    mine = [p.grad.clone() for p in policy.model.parameters()]
    fit._rest(policy.model)
    assert policy.model.config._attn_implementation == "sdpa"
    policy.model.zero_grad()
    losses = []
    for start, length in zip(group.starts.tolist(), group.lengths.tolist(), strict=True):
        ids, learnt = group.tokens[start : start + length], group.learnt[start : start + length]
        logits = policy.model(input_ids=ids[None]).logits[0, :-1][learnt[1:]]
        losses.append(
            torch.nn.functional.cross_entropy(logits, ids[1:][learnt[1:]], reduction="none")
        )
    alone = torch.cat(losses).mean()
    alone.backward()
    assert torch.allclose(packed, alone, atol=1e-5)
    for ours, parameter in zip(mine, policy.model.parameters(), strict=True):
        assert torch.allclose(ours, parameter.grad, atol=1e-5) and parameter.grad.abs().max() > 0


def test_how_fast_a_machine_is_decides_nothing_of_a_policy(
    tiny: Path, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is enough is asked after the same steps, and ends the training with the same weights."""
    from recipes.finetune import fit
    from recipes.finetune.policy import load

    def made(clock: Iterator[float]) -> tuple[list[torch.Tensor], dict[str, Any], int]:
        monkeypatch.setattr(fit.time, "perf_counter", lambda: next(clock))
        asked: list[int] = []
        policy = load(str(tiny))
        options = parse_arguments(
            ["--on", "pocket", "--base", str(tiny), "--every", "2", "--name", "made"]
        )
        stream: Any = Namespace(
            group=lambda: group_of([9, 6, 4], [[6, 7], [5], [2]]), blocks=1, digest=sha256()
        )
        options.batch_tokens = 10
        done = fit._fit(
            policy.model, stream, options, lambda: bool(asked.append(1)) or len(asked) == 3
        )
        return [p.detach() for p in policy.model.parameters()], done, len(asked)

    weights, slow, asked = made(count(0.0, 1e6))
    again, fast, also = made(count(0.0, 1e-9))
    assert asked == also == 3 and slow["steps"] == fast["steps"] == 6
    assert all(torch.equal(one, other) for one, other in zip(weights, again, strict=True))


def test_a_length_that_is_given_takes_the_place_of_the_usual_one(tiny: Path) -> None:
    def of(*more: str) -> Namespace:
        return parse_arguments(["--on", "pocket", "--base", str(tiny), "--name", "made", *more])

    assert (of().steps, of().minutes) == (1300, None)
    assert [(made.steps, made.minutes) for made in (of("--minutes", "2"), of("--steps", "7"))] == [
        (None, 2.0),
        (7, None),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--every 0", "argument --every: '0' is no whole number from 1 on"),
        ("--limit -3", "argument --limit: '-3' is no whole number from 1 on"),
        ("--minutes 0", "argument --minutes: '0' is not above 0"),
        ("--learning-rate nan", "argument --learning-rate: 'nan' is not above 0"),
        ("--until 2", "argument --until: '2' is no share from 0 to 1"),
        (
            "--until 0.5 --steps 3",
            "--until 0.5 would never be looked at: --every 1000 is more than --steps 3",
        ),
        ("--name a/b", "--name 'a/b': a policy's name has letters"),
        ("--name ../b", "--name '../b': a policy's name has letters"),
        ("--preset cpu", "--preset: the course 'pocket' has no use for it"),
        ("--wrong 0.3", "--wrong: the course 'pocket' has no use for it"),
        ("--set task.options.style=create", "--set: the course 'pocket' has no use for it"),
        (
            "--agents reference_sql,reference_sql",
            "--agents reference_sql,reference_sql: one is named twice",
        ),
        ("--agents reference_sql --transcripts /no/where/t.jsonl", "there is no folder /no/where"),
    ],
)
def test_what_would_do_nothing_or_never_end_is_refused(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, ConfigError)) as refused:
        parse_arguments(["--on", "pocket", *given.split()])
    assert message in str(refused.value) + capsys.readouterr().err


def test_a_vocabulary_of_more_than_two_bytes_is_kept_whole(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    large = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(70_000)}, unk_token="w0")
    )
    large.pre_tokenizer = pre_tokenizers.Whitespace()
    large.save(str(tmp_path / "tokenizer.json"))
    rows.start_worker(str(tmp_path / "tokenizer.json"))
    row = scaffolds.Row((("w1 w69999", False), ("w65536", True)))
    group = rows.Group.of([rows.make_block(lambda index: [row], 0)])
    assert group.tokens[:3].tolist() == [1, 69_999, 65_536] and group.learnt[:3].tolist() == [
        False,
        False,
        True,
    ]


@pytest.fixture(scope="module")
def played(tiny: Path) -> Any:
    """The course of a strict agent, of idiomatic ones that are installed, and of one of another program."""
    from transformers import AutoTokenizer

    agents = [name for name in AGENTS if name in plugins.agents_of()]
    arguments = [
        "--on",
        "pocket",
        "--base",
        str(tiny),
        "--agents",
        ",".join(agents),
        "--limit",
        "5",
        "--wrong",
        "0.6",
    ]
    keep = tiny.parent / "transcripts.jsonl"
    options = parse_arguments(
        [*arguments, "--transcripts", str(keep), "--workers", "1", "--name", "played"]
    )
    with scaffolds.course(options, AutoTokenizer.from_pretrained(tiny)) as course:
        yield Namespace(course=course, agents=agents, transcripts=read(keep), options=options)


@pytest.mark.slow
def test_kept_transcripts_are_those_of_the_same_settings(
    played: Any, tiny: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    def again(**changed: Any) -> list[str]:
        options = Namespace(**{**vars(played.options), **changed})
        with scaffolds.course(options, AutoTokenizer.from_pretrained(tiny)) as course:
            return list(course.held_out)

    assert again() == played.agents
    (tmp_path / "no.jsonl").write_text('{"question": "?"}\n')
    for changed, message in (
        (
            {"set": ["task.options.schema_chars=200"]},
            "was played with other questions, agents or settings: remove it",
        ),
        (
            {"agents": played.agents[:1]},
            "was played with other questions, agents or settings: remove it",
        ),
        ({"transcripts": tmp_path / "no.jsonl"}, "holds no transcripts that a recipe kept"),
    ):
        with pytest.raises(ConfigError, match=message):
            again(**changed)


@pytest.mark.slow
def test_every_scaffold_has_the_same_questions(played: Any) -> None:
    shares = defaultdict(list)
    for one in played.transcripts:
        shares[one.agent].append(one.task)
    assert list(shares) == played.agents and len({tuple(tasks) for tasks in shares.values()}) == 1
    wrong = [task for task in shares["reference_sql"] if task.endswith("+wrong")]
    assert len(shares["reference_sql"]) == 10 + len(
        wrong
    )  # five to learn from, five held out, some played twice
    about = played.course.about
    assert about["questions"] == 5 and 0 < about["wrong_drafts"] < len(wrong) <= 9
    assert about["transcripts"] == (5 + about["wrong_drafts"]) * len(played.agents)


def gold_of(played: Any) -> dict[str, Any]:
    from harness_sql.tasks.pocket import PocketTasks

    tasks = PocketTasks()
    known = {task.id: task for split in ("train", "val") for task in tasks.load(split)}
    return {one.task: known[one.task.removesuffix("+wrong")] for one in played.transcripts}


def test_no_agent_is_told_gold_before_the_teacher_says_it(played: Any) -> None:
    golds = gold_of(played)
    for one in played.transcripts:
        gold, written = golds[one.task].gold, False
        for call in one.calls:
            asked = json.dumps([call.messages, call.tools])
            assert written or json.dumps(gold)[1:-1] not in asked, (one.agent, one.task)
            written = (
                written or gold in json.dumps(call.reply) or gold in str(call.reply["content"])
            )
        assert written


def test_a_wrong_draft_is_rejected_and_repaired_in_every_scaffold(played: Any) -> None:
    from harness_sql.sqlite.environment import database_of
    from harness_sql.sqlite.evaluator import evaluate

    golds = gold_of(played)
    for one in played.transcripts:
        task = golds[one.task]
        right = [
            evaluate(database_of(task), task.gold, scaffolds.query_in(call.reply)).match is True
            for call in one.calls
            if APPROVED not in call.reply["content"] and REJECTED not in call.reply["content"]
        ]
        assert all(right[1:]) and right[0] != one.task.endswith("+wrong"), (one.agent, one.task)
        checks = [call.reply["content"] for call in one.calls if call.role == "check_query"]
        assert [REJECTED in check for check in checks] in ([], [False], [True, False]), one.agent
        assert evaluate(database_of(task), task.gold, one.answer).match is True


def test_rows_are_the_requests_as_a_server_renders_them(played: Any, tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = played.course.chat_template
    render = tokenizer.apply_chat_template
    for one in played.transcripts:
        lesson: Any = Namespace(wrong=None, question=scaffolds.Question("?", "", {}, ""))
        made = scaffolds.rows_of(one, render, tokenizer.eos_token, lesson, "")
        assert sum(len(row.parts) for row in made) == 2 * len(one.calls)
        texts = ["".join(text for text, _ in row.parts) for row in made]
        for call in one.calls:
            messages = for_template(call.messages)
            prompt = render(
                messages, tools=call.tools or None, tokenize=False, add_generation_prompt=True
            )
            assert any(text.startswith(prompt) for text in texts)
            assert all(tool["function"]["name"] in prompt for tool in call.tools)
    if "openai_agents_sql_idiomatic" in played.agents:
        (tooled,) = [
            one for one in played.transcripts if one.agent == "openai_agents_sql_idiomatic"
        ][:1]
        assert tooled.calls[0].tools and len(tooled.calls) > 1


def test_replies_are_learnt_and_wrong_drafts_are_not(played: Any) -> None:
    import pickle

    every = [
        row for some in pickle.loads(Path(played.course.source.file).read_bytes()) for row in some
    ]
    assert played.course.about["varied_rows"] == 1.0
    spared = 0
    for row in every:
        assert any(learnt for _, learnt in row.parts)
        for at, (text, learnt) in enumerate(row.parts):
            assert not learnt or at % 2  # prompts never
            if at % 2:
                assert text.endswith("<|im_end|>")
                wrong = any(one.sql in text and row.seen.sql not in text for one in row.seen.wrong)
                assert learnt != wrong
                spared += wrong
    tooled = [
        name for name in played.agents if name != "reference_sql"
    ]  # whose repairs go on from the draft
    assert spared == played.course.about["wrong_drafts"] * len(tooled)


def test_a_varied_row_is_about_one_schema(played: Any) -> None:
    prompts = {row.parts[0][0] for index in range(6) for row in played.course.source(index)}
    again = {row.parts[0][0] for index in range(6) for row in played.course.source(index)}
    assert prompts == again and len(prompts) > 50
    for index in range(6):
        for row in played.course.source(index):
            whole = "".join(text for text, _ in row.parts)
            tables = {
                line.split("(")[0] for line in whole.splitlines() if " pk" in line and "(" in line
            }
            learnt = " ".join(text for text, is_learnt in row.parts if is_learnt)
            assert set(re.findall(r"(?:FROM|JOIN) (\w+)", learnt)) <= tables, whole


def test_held_out_is_measured_by_scaffold(played: Any) -> None:
    golds = gold_of(played)

    class Teacher:
        """Says to each prompt what was said to it."""

        max_new_tokens = 0

        def __init__(self, right: str) -> None:
            self.right = right

        def go_on(self, prompts: list[str]) -> list[str]:
            return [self.answer(prompt) for prompt in prompts]

        def answer(self, prompt: str) -> str:
            task = next(task for task in golds.values() if task.question in prompt)
            call = json.dumps({"name": "any", "arguments": {"sql": task.gold}})
            if "<tools>" in prompt and self.right == "tools":
                return f"<tool_call>\n{call}\n</tool_call>"
            return f"```sql\n{task.gold}\n```" if "<tools>" not in prompt else "SELECT 1"

    for right in ("tools", ""):
        teacher: Any = Teacher(right)
        shares = {name: measure(teacher, None) for name, measure in played.course.held_out.items()}
        with_tools = {"openai_agents_sql_idiomatic", "reference_tools"}
        assert shares == {
            name: float(bool(right) or name not in with_tools) for name in played.agents
        }
        assert played.course.report(teacher)["after_the_draft"]["reference_sql"]["further"] == 1.0


@pytest.mark.slow
def test_a_policy_is_fine_tuned_on_scaffolds_until_it_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        *COMMAND,
        "--base",
        "pocket-sql",
        "--agents",
        "reference_sql,reference_tools",
        "--name",
        "mine",
    ]
    done = run([*command, "--until", "0", "--every", "1"], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / "policies" / "mine"
    manifest = json.loads((folder / "manifest.json").read_text())
    base = json.loads((Path(resolve("pocket-sql")) / "manifest.json").read_text())
    assert manifest["policy"] == "mine" and manifest["licence"] == "Apache-2.0"
    training, measured = manifest["training"], manifest["measured"]
    assert training["base"] == {"policy": "pocket-sql", "revision": "", "sha256": base["sha256"]}
    assert training["steps"] == 1 and training["agents"] == ["reference_sql", "reference_tools"]
    assert (
        set(measured["before"]) == set(measured["held_out"]) == {"reference_sql", "reference_tools"}
    )
    shares = measured["held_out"].values()
    assert (
        measured["apart"] == max(shares) - min(shares)
        and "check" in measured["after_the_draft"]["reference_sql"]
    )
    assert set(manifest["sha256"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert "<tool_call>" in (folder / "chat_template.jinja").read_text()
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    assert main(command[3:]) == 2
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith(f"{folder} is there already: remove it")
    )


@pytest.mark.slow
def test_a_policy_is_made_from_nothing(tmp_path: Path) -> None:
    from recipes.finetune.policy import load
    from recipes.pocket_sql.verify import changed_data

    done = run([*COMMAND, "--out", tmp_path / "made"], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    manifest = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert manifest["policy"] == "pocket-sql" and manifest["training"]["base"] is None
    assert manifest["settings"]["habits"] and manifest["settings"]["replays"] == 1
    shipped = json.loads((Path(resolve("pocket-sql")) / "manifest.json").read_text())
    assert manifest["training"]["drafts_sha256"] == shipped["training"]["drafts_sha256"]
    assert manifest["training"]["parameters"] > 3e6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load(str(tmp_path / "made")).model.config.num_hidden_layers == 5
    manifest["versions"]["sqlite"] = "another"
    (tmp_path / "made" / "manifest.json").write_text(json.dumps(manifest))
    assert changed_data(tmp_path / "made") == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--on", "pocket", "--slips", "0.5"], "--slips 0.5: only --on pocket_split has slips"),
        (
            ["--on", "pokcet"],
            "--on 'pokcet' is no course; there are pocket, pocket_probe, spider, medical, ",
        ),
        (
            ["--on", "medical", "--agents", "reference_sql", "--name", "mine"],
            "--agents: 'reference_sql' is no agent of tool_loop",
        ),
        (["--on", "pokcet", "--agents", "reference_sql"], "no task set called 'pokcet'"),
        (["--agents", "nobody_sql"], "no agent called 'nobody_sql'"),
        ([], "pocket-sql is shipped: name another --name, or an --out"),
        (
            ["--agents", "reference_sql", "--held-out", "train"],
            "--held-out: 2 questions are learned as well",
        ),
    ],
)
def test_what_cannot_be_made_is_one_line(
    more: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    assert main([*COMMAND[3:], *more]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_policy_of_another_chat_template_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny, tmp_path / "other")
    for file in ("tokenizer_config.json", "tokenizer.json", "chat_template.jinja"):
        path = tmp_path / "other" / file
        path.write_text(path.read_text().replace("<|im_start|>", "[INST]"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (
            main([*COMMAND[3:], "--base", str(tmp_path / "other"), "--out", str(tmp_path / "out")])
            == 2
        )
    assert "its chat template is not ChatML" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
