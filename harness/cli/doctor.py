"""`harness doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, results

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Import everything in processes of its own, ask for policy and loggers.")
    ] = False,
    preset: Annotated[str | None, typer.Option(help="What --deep asks for.", autocompletion=complete.presets)] = None,
    set_: complete.Settings = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check this machine; each line is ok or says what to do. Exit status 1 where something must be done."""
    from rich.markup import escape

    from harness.config import load_config, resolve_device
    from harness.diagnosis import examine
    from harness.python.asking import default_preset

    findings = examine()
    if deep:
        from harness.diagnosis.deep import try_out

        findings += try_out(load_config(preset or default_preset(None, resolve_device("auto")), None, set_ or []))
    if json_:
        emit_json([{"check": f.check, "state": f.state, "found": f.found, "advice": f.advice} for f in findings])
    else:
        colours = {"ok": "green", "note": "yellow", "problem": "red"}
        for finding in findings:
            advice = f" -> {escape(finding.advice)}" if finding.advice else ""
            state = f"[{colours[finding.state]}]{finding.state:7}[/]"
            results().print(f"{state} {finding.check:26} {escape(finding.found)}{advice}", markup=True)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)
