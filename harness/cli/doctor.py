"""`harness doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results

if TYPE_CHECKING:
    from harness.contracts.findings import Finding

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also import every plugin and try the policy and loggers."),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="The preset with the policy and loggers to try.", autocompletion=complete.presets
        ),
    ] = None,
    set_: complete.Settings = None,
    ray: Annotated[
        str | None, typer.Option(help="Instead of this machine: a Ray cluster, HOST:PORT.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check this machine.

    Each line is ok or states what to do. Exit status 1 if something must be done.
    """
    findings: list[Finding] = []
    problems = False
    for finding in _found(deep, preset, set_ or []) if ray is None else _cluster(ray):
        findings.append(finding)
        problems = problems or finding.state == "problem"
        # Some checks take minutes, so each line is shown when it is known.
        if not json_:
            _show(finding)
    if json_:
        emit_json([_plain(finding) for finding in findings])
    if problems:
        raise typer.Exit(1)


def _plain(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "state": finding.state,
        "found": finding.found,
        "advice": finding.advice,
    }


def _found(deep: bool, preset: str | None, settings: list[str]) -> Iterator[Finding]:
    """Yield findings one by one, with progress on stderr."""
    from harness.api.parameters import default_preset
    from harness.config import load_config, resolve_device
    from harness.doctor import examine

    config = (
        load_config(preset or default_preset(None, resolve_device("auto")), None, settings)
        if deep
        else None
    )
    yield from examine()
    if config is not None:
        from harness.doctor.deep import try_out

        yield from try_out(config, progress_console().print)


def _cluster(address: str) -> Iterator[Finding]:
    """Yield the trainer's findings about a Ray cluster."""
    from harness.config import load_config
    from harness.plugins import make_trainer

    yield from make_trainer(load_config(None)).examine(address)


def _show(finding: Finding) -> None:
    from rich.markup import escape

    colours = {"ok": "green", "note": "yellow", "problem": "red"}
    advice = f" -> {escape(finding.advice)}" if finding.advice else ""
    state = f"[{colours[finding.state]}]{finding.state:7}[/]"
    results().print(f"{state} {finding.check:26} {escape(finding.found)}{advice}", markup=True)
