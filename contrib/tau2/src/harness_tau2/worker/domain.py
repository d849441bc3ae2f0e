"""One domain of the wheel: its tools, its tasks, and sessions with their own databases."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import importlib
import inspect
import json
import marshal
import pickle
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import docstring_parser
from pydantic import BaseModel, Field, create_model

from harness_tau2.worker.messages import Arguments, Changes, Definition
from harness_tau2.worker.standins import PACKAGE, StoreModel, ToolError, current

Call: TypeAlias = "Callable[..., Coroutine[None, None, object]]"
NOT_OF_THE_DATABASE = ("calculate", "transfer_to_human_agents")
"""Tools of gold actions that the wheel's own scorer does not replay."""
DIGITS = 16
"""Digits kept of a record's SHA-256."""


class Domain:
    """A domain from the folder of the unpacked wheel; call `standins.install` first.

    Args:
        folder: Parent of `inspect_evals`.
        name: For example `retail`: its module `tools` has `all_retail_tools`, `RetailAgentTools`
            has the database.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.files = folder.joinpath(*PACKAGE.split("."), "data", "domains", name)
        module = importlib.import_module(f"{PACKAGE}.{name}.tools")
        title = f"{name.title()}AgentTools"
        state_module = importlib.import_module(f"{PACKAGE}.{name}.{title}")
        self.state: type[StoreModel] = getattr(state_module, title)
        self.tools: dict[str, Call] = {}
        for factory in getattr(module, f"all_{name}_tools"):
            self.tools[factory.__name__] = factory()
        database: Any = self.state.model_fields["db"].annotation
        with gzip.open(self.files / "db.json.gz") as file:
            self._pristine: bytes = pickle.dumps(database.model_validate(json.load(file)), 5)
        self._was = _records(self.session())
        self._runner = asyncio.Runner()

    def session(self) -> StoreModel:
        """Return a state with a copy of the database."""
        return self.state(db=pickle.loads(self._pristine), initialized=True)

    def call(self, session: StoreModel, tool: str, arguments: Arguments) -> tuple[str, bool]:
        """Return a tool's output and whether it succeeded.

        Its exceptions become output, as in tau2-bench.
        """
        execute = self.tools[tool]
        current[self.state] = session
        try:
            output = self._runner.run(execute(**_typed(execute, arguments)))
        except Exception as error:
            return f"Error: {error}", False
        finally:
            del current[self.state]
        return output if isinstance(output, str) else json.dumps(output, default=str), True

    def replay(self, actions: Sequence[tuple[str, Arguments]]) -> tuple[Changes, int]:
        """Return the changes of gold actions and the count of refused ones, as the scorer does."""
        session, refused = self.session(), 0
        for name, arguments in actions:
            if name not in NOT_OF_THE_DATABASE:
                try:
                    getattr(session, name)(**arguments)
                except ToolError:
                    refused += 1
        return self.changes(session), refused

    def changes(self, session: StoreModel) -> Changes:
        """Return changed records. Sessions with equal changes have equal final states."""
        now = _records(session)
        # A deleted record has no content to hash: an empty text marks it.
        changes = {key: "" for key in self._was if key not in now}
        for key, record in now.items():
            was = self._was.get(key)
            if was != record:  # also differs in irrelevant ways, such as the order of a mapping
                digest = _digest(record)
                if was is None or digest != _digest(was):
                    changes[key] = digest
        return changes

    def definitions(self) -> list[Definition]:
        """Return name, description and schema of every tool."""
        return [_definition(name, execute) for name, execute in self.tools.items()]


def _records(session: StoreModel) -> dict[str, bytes]:
    """Return every record of a database, by table and key."""
    database: BaseModel = getattr(session, "db")  # noqa: B009 (a field of its subclasses)
    tables = database.model_dump(warnings=False)
    contents = {}
    for table, records in tables.items():
        for key, record in records.items():
            contents[f"{table}/{key}"] = marshal.dumps(record, 2)
    return contents


def _digest(record: bytes) -> str:
    """Return the digest of a record in the format that tau2-bench hashes."""
    written = json.dumps(marshal.loads(record), sort_keys=True, default=str)
    return hashlib.sha256(written.encode()).hexdigest()[:DIGITS]


def _typed(execute: Call, arguments: Arguments) -> dict[str, object]:
    """Convert arguments such as JSON's 3.0 to an integer if the parameter is one."""
    hints = get_type_hints(execute)
    converted: dict[str, object] = {}
    for name, value in arguments.items():
        if hints.get(name) is int and isinstance(value, float):
            converted[name] = int(value)
        else:
            converted[name] = value
    return converted


def _definition(name: str, execute: Call) -> Definition:
    """Return a tool's definition as inspect_ai makes it, with inlined schemas."""
    documentation = docstring_parser.parse(inspect.getdoc(execute) or "")
    descriptions = {param.arg_name: param.description or "" for param in documentation.params}
    fields: dict[str, Any] = {}
    for argument, hint in get_type_hints(execute).items():
        if argument != "return":
            fields[argument] = (hint, Field(description=descriptions.get(argument)))
    schema = create_model(name, **fields).model_json_schema()
    definitions = schema.pop("$defs", {})
    properties = {}
    for key, part in schema.get("properties", {}).items():
        properties[key] = _inline(part, definitions)
    parameters: dict[str, object] = {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": False,
    }
    description = (documentation.description or "").strip()
    return {"name": name, "description": description, "parameters": parameters}


def _inline(schema: object, definitions: Mapping[str, dict[str, object]]) -> object:
    """Return a schema without references and without pydantic's titles."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        # What is next to a reference, such as a description, takes precedence.
        own = {key: part for key, part in schema.items() if key != "$ref"}
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], **own}
    inlined: dict[str, object] = {}
    # The type goes first, as inspect_ai writes it.
    if isinstance(schema.get("type"), str):
        inlined["type"] = schema["type"]
    for key, part in schema.items():
        # A property may be called `title`; only pydantic's titles are texts.
        if not (key == "title" and isinstance(part, str)):
            inlined[key] = _inline(part, definitions)
    return inlined
