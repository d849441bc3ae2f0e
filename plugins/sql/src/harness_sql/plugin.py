"""Register the SQL plugin: environment, programs, task sets, rewards and commands."""

from __future__ import annotations

import math
from functools import partial

from harness.contracts.hookspecs import (
    AgentSpec,
    CommandSpec,
    EnvironmentSpec,
    ProgramSpec,
    RewardSpec,
    TaskSetSpec,
    hookimpl,
)
from harness_sql.self_correcting.roles import ROLES

HARNESS_API = 1
_SPIDERS = (
    (
        "spider",
        "SpiderTasks",
        "Spider 1.0 (prepare it with `harness data spider SOURCE`)",
        (
            "train",
            "train_a",
            "train_b",
            "train_b_fit",
            "train_b_held",
            "train_others",
            "dev",
            "dev_500",
            "dev_rest",
            "val",
        ),
    ),
    (
        "spider_syn",
        "SpiderSynTasks",
        "Spider-Syn: other words for what the schema names (`harness data spider`)",
        ("train", "dev", "dev_500", "dev_rest", "val"),
    ),
    (
        "spider_realistic",
        "SpiderRealisticTasks",
        "Spider-Realistic: columns are not named (`harness data spider`)",
        ("dev",),
    ),
    (
        "spider_dk",
        "SpiderDKTasks",
        "Spider-DK: knowledge of the domain is needed (`harness data spider`)",
        ("dev",),
    ),
)
"""Spider and its variants: name, class, summary and splits."""
ONE_QUERY = "Answer with one SQLite query that returns what is asked, and nothing else."
"""The answers that rewards can score that execute the answer."""
_graded = partial(RewardSpec, graded=True)
_task_set = partial(TaskSetSpec, environment="sql")
_SPIDER = (("cpu", "cpu-spider"), ("cuda", "qwen-1.5b"), ("npu", "qwen-1.5b"))


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "reference_sql",
            "harness_sql.self_correcting.reference:ReferenceSQL",
            "plain Python: the reference of parity and overhead",
            roles=ROLES,
            frameworks=("httpx",),
            program="self_correcting_sql",
        ),
        AgentSpec(
            "reference_tools",
            "harness_sql.tool_loop.reference:ReferenceTools",
            "plain Python: calls tools of any environment",
            roles=("assistant",),
            frameworks=("httpx",),
            program="tool_loop",
        ),
    ]


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "sql", "harness_sql.sqlite.environment:SQLEnvironment", "one read-only SQLite database"
        )
    ]


@hookimpl
def harness_programs() -> list[ProgramSpec]:
    return [
        ProgramSpec(
            "self_correcting_sql",
            "harness_sql.self_correcting.program:SelfCorrectingSQL",
            "write a query, execute it, check it, rewrite it",
        ),
        ProgramSpec(
            "tool_loop",
            "harness_sql.tool_loop.program:ToolLoop",
            "call the environment's tools until the answer is given in words",
        ),
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        _task_set(
            "files",
            "harness_sql.tasks.files:FilesTasks",
            "your own questions and SQLite databases (JSON lines, CSV, Parquet)",
            splits=("train", "val", "test", "all"),
        ),
        _task_set(
            "pocket",
            "harness_sql.tasks.pocket:PocketTasks",
            "bundled questions over small generated databases",
        ),
        _task_set(
            "pocket_probe",
            "harness_sql.tasks.pocket_probe:PocketProbeTasks",
            "bundled questions that hang on how values are stored, which only execution shows",
            splits=("train", "dev", "test"),
            presets=(("cpu", "pocket-probe"), ("cuda", "pocket-probe"), ("npu", "pocket-probe")),
            eval_split="dev",
            reserved=("test",),
        ),
        *(
            _task_set(
                name,
                f"harness_sql.tasks.spider:{of}",
                summary,
                splits=splits,
                presets=_SPIDER,
                eval_split="dev",
            )
            for name, of, summary, splits in _SPIDERS
        ),
        _task_set(
            "bird",
            "harness_sql.tasks.bird:BirdTasks",
            "BIRD, with evidence (prepare it with `harness data bird SOURCE`)",
            splits=("train", "dev", "mini_dev", "dev_500", "dev_rest", "val"),
            presets=(("cpu", "bird-cpu"), ("cuda", "bird-qwen-1.5b"), ("npu", "bird-qwen-1.5b")),
            eval_split="dev",
        ),
        _task_set(
            "medical",
            "harness_sql.tasks.medical:MedicalTasks",
            "bundled Chinese questions over invented drugs and diseases, answered in words",
            presets=(("cpu", "medical"), ("cuda", "medical-gpu"), ("npu", "medical")),
        ),
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "execution_accuracy",
            "harness_sql.rewards.execution_accuracy:ExecutionAccuracy",
            "1 where the query returns what the gold returns, else 0",
            answer_form=ONE_QUERY,
        ),
        RewardSpec(
            "bird_accuracy",
            "harness_sql.rewards.bird:BirdAccuracy",
            "BIRD's execution accuracy: "
            "1 where the query returns the same set of rows as the gold, else 0",
            answer_form=ONE_QUERY,
        ),
        _graded(
            "bird_soft_f1",
            "harness_sql.rewards.bird:BirdSoftF1",
            "BIRD's Soft-F1: how much of the gold's rows, in their order, the query returns",
            answer_form=ONE_QUERY,
        ),
        RewardSpec(
            "bird_r_ves",
            "harness_sql.rewards.bird:BirdRVes",
            "BIRD's R-VES: a right query is paid by its time relative to the gold's, "
            "which no second run gives again",
            high=math.sqrt(1.25),
            parts=("right",),
            answer_form=ONE_QUERY,
        ),
        RewardSpec(
            "executes",
            "harness_sql.rewards.executes:Executes",
            "1 where a query of the attempt executed, else 0",
        ),
        _graded(
            "soft_f1",
            "harness_sql.rewards.soft_f1:SoftF1",
            "execution accuracy, with something for tables, columns and cells that are right",
            parts=("parses", "runs", "tables", "columns", "cells", "exact"),
            answer_form=ONE_QUERY,
        ),
        _graded(
            "facts",
            "harness_sql.rewards.facts:Facts",
            "share of the gold answer's numbers and names that an answer in words states, "
            "less numbers made up",
            parts=("recall", "precision"),
        ),
        _graded(
            "judge",
            "harness_sql.rewards.judge:Judge",
            "a language model's grades of the answer, by criteria",
        ),
        _graded(
            "hybrid",
            "harness_sql.rewards.hybrid:Hybrid",
            "other rewards, weighted: execution and a judge by default",
        ),
    ]


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec("run", "harness_sql.cli.ask:app", "Ask one question and show every turn."),
        CommandSpec("data", "harness_sql.cli.data:app", "Prepare and verify data sets."),
        CommandSpec("reward", "harness_sql.cli.reward:app", "Audit the reward."),
        CommandSpec("score", "harness_sql.cli.score:app", "Score one query against its gold."),
    ]
