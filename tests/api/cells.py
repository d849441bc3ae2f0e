"""Executes the cells of a notebook in this process, without IPython.

`python tests/api/cells.py examples/first_look.ipynb` writes what its cells show into it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SKIPPED = "minutes"
"""Tag of cells that train or serve a policy; they are never executed here."""


def code_cells(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and SKIPPED not in cell["metadata"].get("tags", ()):
            yield cell


def executed(file: Path) -> list[list[dict[str, Any]]]:
    """The outputs of every cell that is not skipped, each executed in the notebook's folder after those before it."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    here, names = Path.cwd(), {"__name__": "__main__"}
    os.chdir(file.parent)
    try:
        return [_outputs("".join(cell["source"]), names) for cell in code_cells(notebook)]
    finally:
        os.chdir(here)


def _outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = tree.body[:-1] if last else tree.body
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)}
        )
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "to_plotly_json"):
            data = {"application/vnd.plotly.v1+json": json.loads(value.to_json())}
        elif (html := getattr(value, "_repr_html_", lambda: None)()) is not None:
            data |= {"text/html": html}
        shown = {
            kind: text.splitlines(True) if isinstance(text, str) else text
            for kind, text in data.items()
        }
        found.append(
            {
                "output_type": "execute_result",
                "execution_count": None,
                "metadata": {},
                "data": shown,
            }
        )
    return found


def main(file: Path) -> None:
    notebook = json.loads(file.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(
        zip(code_cells(notebook), executed(file), strict=True), 1
    ):
        for output in outputs:
            if "execution_count" in output:
                output["execution_count"] = number
        cell |= {"outputs": outputs, "execution_count": number}
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
