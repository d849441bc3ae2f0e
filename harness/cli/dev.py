"""`harness dev`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.api.parameters import named_endpoint
from harness.cli import complete
from harness.cli.common import emit_json, results
from harness.cli.serve import answered, patient, preset_of, roles_answered, to_serve
from harness.config import Config, load_config
from harness.config.sections import PolicyConfig
from harness.records import Attempt, CallFailure, Task, ToolCall, Transition, Verdict
from harness.util.endpoints import Endpoint
from harness.util.tool_calls import has_unread_call

if TYPE_CHECKING:
    from harness.contracts.queue import DryRun
    from harness.gateway.client import GatewayControl
    from harness.runs.folder import RunFolder

Decoder = Callable[[Sequence[int]], str]

app = typer.Typer(add_completion=False)


@app.command()
def dev(
    agent: Annotated[
        str | None, complete.agent("The agent; by default the run's, or langgraph_sql.")
    ] = None,
    endpoint: complete.Endpoint = None,
    model: complete.Model = None,
    api_key_env: complete.KeyVariable = "OPENAI_API_KEY",
    tasks: Annotated[int, typer.Option(min=1, max=10, help="How many tasks.")] = 3,
    task: Annotated[
        str | None, complete.task("The task set; by default pocket, or a run's.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split; by default the validation split.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file.")] = None,
    set_: complete.Settings = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print every span and verdict as JSON.")
    ] = False,
) -> None:
    """Run a few tasks and show every span and the reward as a tree."""
    from harness.plugins import make_task_set
    from harness.rollout.queue_plugin import queue_spec
    from harness.rollout.request import RolloutRequest
    from harness.training.checks import check
    from harness.training.task_order import validation_order

    here = to_serve(model, endpoint)
    preset, file = preset_of(here, task)
    overrides = [f"task.name={task}"] if task is not None else []
    overrides += [f"task.val_limit={tasks}", *(set_ or [])]
    if split is not None:
        overrides.append(f"task.val_split={split}")
    resolved = load_config(preset, config or file, overrides, agent=agent)
    check(resolved, trains=False)
    queue_spec()
    resolved = patient(resolved, here, set_)
    answers = here or named_endpoint(endpoint, model, api_key_env)
    task_set = make_task_set(resolved)
    chosen = validation_order(task_set.load(resolved.task.val_split), resolved)
    requests = []
    for question in chosen:
        request = RolloutRequest.build(question, task_set.context(question), resolved, "val")
        requests.append(request.dump())
    with roles_answered(resolved) as roles, answered(answers, resolved) as served:
        runs = _run(resolved, requests, served, roles)
    ended = []
    for question, run in zip(chosen, runs, strict=True):
        if run.attempt is not None:
            ended.append((question, run.attempt))
    judged = asyncio.run(_judged(resolved, ended))
    if json_:
        verdicts = {}
        for (question, _), (_, verdict) in zip(ended, judged, strict=True):
            verdicts[question.id] = asdict(verdict)
        rows = []
        for question, run in zip(chosen, runs, strict=True):
            # An attempt that did not end has spans and no verdict.
            row = {"task": question.id, "verdict": verdicts.get(question.id), "spans": run.spans}
            rows.append(row)
        emit_json(rows)
        return
    decode = _decoder(here)
    for attempt, verdict in judged:
        results().print(tree(attempt, verdict, decode), markup=True, soft_wrap=False)


async def _judged(
    config: Config, ended: list[tuple[Task, Attempt]]
) -> list[tuple[Attempt, Verdict]]:
    """Return each attempt with the verdict that a run would give it."""
    from harness.plugins import roles_of
    from harness.rollout.scoring import Scorer
    from harness.training.data import refusals

    scorer = Scorer(config, roles=roles_of(config.agent))
    refused = refusals(config, [task for task, _ in ended])

    async def judge(task: Task, attempt: Attempt) -> tuple[Attempt, Verdict]:
        if task.id in refused:
            return attempt, Verdict(None, refused[task.id])
        return await scorer.judge(task, attempt)

    return list(await asyncio.gather(*(judge(task, attempt) for task, attempt in ended)))


def tree(attempt: Attempt, verdict: Verdict | None = None, decode: Decoder | None = None) -> Any:
    """Return one attempt as a tree: calls, results of tools, outcome and verdict.

    Args:
        decode: Converts token ids to text with special tokens; None without a local tokenizer.
    """
    from rich.markup import escape
    from rich.tree import Tree

    mark = "[green]ok[/]"
    if attempt.outcome != "ok":
        mark = f"[red]{attempt.outcome}[/] {escape(attempt.detail)}"
    top = Tree(f"[bold]{attempt.rollout_id}[/] {mark} {attempt.elapsed_s:.2f} s")
    calls: list[Transition | CallFailure | ToolCall] = [
        *attempt.transitions,
        *attempt.failures,
        *attempt.tool_calls,
    ]
    calls.sort(key=lambda call: call.started_s)
    for call in calls:
        if isinstance(call, ToolCall):
            fault = f" [red]{call.fault}[/]" if call.fault else ""
            top.add(
                f"[magenta]{escape(call.tool)}[/]{fault} "
                f"{1000 * call.elapsed_s:.0f} ms\n{escape(call.text)}"
            )
            continue
        if isinstance(call, CallFailure):
            status = call.status if call.status is not None else "no answer"
            top.add(f"[red]{call.role}[/] {status}: {escape(call.detail)}")
            continue
        _add_call(top, call, decode)
    top.add(f"[bold]answer[/] {escape(attempt.answer or '-')}")
    if verdict is not None:
        value = "[yellow]unscored[/]"
        if verdict.value is not None:
            value = f"[bold]reward[/] {verdict.value:g}"
        node = top.add(f"{value} {escape(verdict.reason)}")
        for name, part in verdict.parts.items():
            node.add(f"{escape(name)} {part:g}")
        for role, own in verdict.by_role.items():
            node.add(f"[cyan]{escape(role)}[/] {own:g}")
        if verdict.flags:
            node.add(f"[dim]flags[/] {escape(', '.join(verdict.flags))}")
    return top


def _add_call(top: Any, call: Transition, decode: Decoder | None) -> None:
    """Add one model call to a tree: messages, offered tools, reply, and the parsed tool calls."""
    from rich.markup import escape

    tokens = f"{call.prompt_tokens or '?'} + {call.response_tokens or '?'} tokens"
    node = top.add(f"[cyan]{call.role}[/] {tokens}, {1000 * call.latency_s:.0f} ms")
    for message in call.messages:
        content = message.get("content")
        node.add(f"[dim]{escape(str(message.get('role')))}[/] {escape(str(content))}")
    if call.offered_tools:
        node.add(f"[magenta]tools offered[/] {escape(', '.join(call.offered_tools))}")
        if decode is not None and call.response_ids is not None:
            node.add(f"[bold]raw reply[/] {escape(decode(call.response_ids))}")
    node.add(f"[bold]reply[/] {escape(call.response_text)}")
    for parsed in call.parsed_calls:
        words = f"{escape(parsed['name'])} {escape(parsed['arguments'])}"
        node.add(f"[magenta]parsed call[/] {words}")
    if has_unread_call(call):
        node.add("[yellow]the reply looks like a tool call, and the server parsed none there[/]")
    if call.overridden:
        node.add(f"[yellow]requested but overridden:[/] {escape(str(dict(call.overridden)))}")


def _decoder(here: RunFolder | str | None) -> Decoder | None:
    """Return a decoder for the token ids of a policy served here; None for an endpoint."""
    from harness.policies import detokenizer, fetched
    from harness.policies.export import checkpoint_model

    if here is None:
        return None
    if isinstance(here, str):
        return detokenizer(fetched(PolicyConfig(path=here)))
    return detokenizer(str(checkpoint_model(here)))


def _run(
    config: Config,
    requests: list[dict[str, Any]],
    endpoint: Endpoint,
    roles: Mapping[str, Endpoint],
) -> list[DryRun]:
    """Run the requests and return their results in order."""
    from harness.gateway.server import GatewayServer
    from harness.plugins import agent_spec, load
    from harness.rollout.agent_host import AgentHost
    from harness.rollout.queue_plugin import queue_backend

    # Its imports take seconds, so they come after all checks.
    backend = queue_backend()
    agent = load(agent_spec(config.agent))()
    with GatewayServer() as gateway:
        asyncio.run(_point(gateway.control(), endpoint, roles))
        return backend.dry_run(
            requests,
            AgentHost(agent, gateway.control()),
            Endpoint(gateway.base_url, endpoint.model, gateway.key),
            config.rollout.concurrency,
        )


async def _point(
    control: GatewayControl, endpoint: Endpoint, roles: Mapping[str, Endpoint]
) -> None:
    async with control:
        await control.point(endpoint, roles)
