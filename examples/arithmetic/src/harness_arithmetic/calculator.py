"""The environment `calculator`: one tool that works out an expression."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

from harness import Environment, Observation, Task, Tool

LONGEST = 200
"""Characters of an expression."""
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculator(Environment):
    """Sums, differences, products and quotients of numbers."""

    tools = (
        Tool(
            "calculate",
            "Work out an expression of numbers, + - * / and brackets.",
            {
                "type": "object",
                "properties": {"expression": {"type": "string", "maxLength": LONGEST}},
                "required": ["expression"],
                "additionalProperties": False,
            },
        ),
    )

    def payload(self, task: Task, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    async def call(
        self, payload: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]
    ) -> Observation:
        try:
            value = _value(ast.parse(arguments["expression"].strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, OverflowError) as error:
            return Observation(f"Error: {error}", ok=False)
        return Observation(f"{value:g}")


def _value(node: ast.expr) -> float:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and type(node.value) is not bool
    ):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return float(OPERATIONS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(f"{ast.unparse(node)} is no number and no + - * /")
