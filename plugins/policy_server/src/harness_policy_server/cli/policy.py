"""`harness policy`: list, fetch and show named policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from harness.cli import complete
from harness.cli.common import emit_json, interruptible, progress_console, results, table
from harness.errors import UserError
from harness.policies.catalogue import Named, by_name, named

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, fetch and show policies by name."
)

NameArgument = Annotated[
    str, typer.Argument(help="A name from `harness policy list`.", autocompletion=complete.policies)
]
_FROM_MANIFEST = (
    "source",
    "precision",
    "quantisation_cost",
    "quantisation_cost_note",
    "mended",
    "measured",
)


@app.command("list")
def list_(json_: complete.Json = False) -> None:
    """List named policies, and whether they are on this machine."""
    rows = [_row(policy) for policy in by_name().values()]
    if json_:
        emit_json(rows)
        return
    shown = table("policy", "state", "parameters", "licence", "what")
    for row in rows:
        many = "" if row["parameters"] is None else f"{row['parameters'] / 1e6:.1f} M"
        shown.add_row(row["name"], row["state"], many, row["licence"], row["summary"])
    results().print(shown)


@app.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A name from `harness policy list`, or a GGUF file.",
            autocompletion=complete.policies,
        ),
    ],
    as_: Annotated[
        str | None, typer.Option("--name", help="Name for the policy made of a GGUF file.")
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            help="hub, package, gguf, or any: Hugging Face, else the package.",
        ),
    ] = "any",
    file_: Annotated[
        Path | None,
        typer.Option("--file", help="The published GGUF file of a named policy, on this machine."),
    ] = None,
    from_parts: Annotated[
        str | None,
        typer.Option(
            help="Packages that contain the published GGUF file in parts: 'NAME-part{}==VERSION'."
        ),
    ] = None,
    parts: Annotated[int | None, typer.Option(help="Number of packages of --from-parts.")] = None,
) -> None:
    """Download a named policy into the cache, or convert your own GGUF file."""
    from harness_policy_server.convert import Source, convert
    from harness_policy_server.convert import fetch as fetch_named
    from harness_policy_server.parts import Parts

    source = next((one for one in get_args(Source) if one == from_), None)
    if source is None:
        raise UserError(f"--from {from_!r} is none of {', '.join(get_args(Source))}")

    if (from_parts is None) != (parts is None):
        raise UserError(
            "--from-parts and --parts need each other: "
            "--from-parts 'NAME-part{}==VERSION' --parts N"
        )
    if file_ is not None and from_parts is not None:
        raise UserError("--file and --from-parts are two sources of one file: give one")
    given = Parts(from_parts, parts) if from_parts is not None and parts is not None else file_
    if given is not None and from_ != "any":
        raise UserError(
            "--from names a source on the network: leave it out with --file or --from-parts"
        )

    interruptible()
    file = Path(name).expanduser()
    if file.suffix.lower() == ".gguf":
        if given is not None:
            raise UserError("--file and --from-parts are for a policy that has a name")
        if as_ is None:
            raise UserError(f"{name} needs a name: harness policy fetch {name} --name NAME")
        if not file.is_file():
            raise UserError(f"there is no file {file} (from {Path.cwd()})")
        folder = convert(file, as_)
        policy_name = as_
    else:
        policy = named(name)
        if as_ is not None:
            raise UserError(f"--name is for a GGUF file; {name} has its name")
        if (policy.package or policy.hub or policy.gguf) and not policy.there:
            progress_console().print(f"{name}: {_pedigree(policy)}")
        folder = fetch_named(
            policy, source, lambda line: progress_console().print(f"{name}: {line}"), given
        )
        policy_name = name
    results().print(f"{policy_name}: {folder}")


@app.command()
def show(name: NameArgument, json_: complete.Json = False) -> None:
    """Show the source, licence and changes of a policy."""
    policy = named(name)
    manifest = policy.manifest()
    if json_:
        emit_json(_row(policy) | {"manifest": manifest or None})
        return
    for key, value in _row(policy).items():
        results().print(f"{key}: {value}")
    if policy.package or policy.hub or policy.gguf:
        results().print(f"from: {_pedigree(policy)}")
    if not policy.there:
        results().print(f"to get it: {policy.how}")
    for key in _FROM_MANIFEST:
        if key in manifest:
            results().print(f"{key}: {_value_text(manifest[key])}")


def _row(policy: Named) -> dict[str, Any]:
    return {
        "name": policy.name,
        "state": policy.state,
        "parameters": policy.parameters,
        "licence": policy.licence,
        "summary": policy.summary,
        "folder": str(policy.folder),
    }


def _pedigree(policy: Named) -> str:
    hub, package, gguf = policy.hub, policy.package, policy.gguf
    places = []
    if hub:
        places.append(
            f"on Hugging Face at {hub.commit[:12]} ({hub.size / 1e6:.0f} MB, {hub.precision})"
        )
    if package:
        places.append(
            f"in the package {package.name} {package.version} ({package.wheel_bytes / 1e6:.0f} MB)"
        )
    if gguf:
        places.append(
            f"the file {gguf.file} of {gguf.repository} at {gguf.commit[:12]} "
            f"({gguf.size / 1e6:.0f} MB, SHA-256 {gguf.sha256})"
        )
    model = policy.name
    for source in (hub, package, gguf):
        if source:
            model = source.model
            break
    return f"{model}, licence {policy.licence}, {', or '.join(places)}"


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return (
        "; ".join(value)
        if isinstance(value, list)
        else value
        if isinstance(value, str)
        else json.dumps(value)
    )
