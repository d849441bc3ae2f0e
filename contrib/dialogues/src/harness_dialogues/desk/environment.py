"""The environment `order_desk`: look up and change orders, in a world of the attempt's own."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import cast

from harness import Environment, Observation, Task, Tool
from harness.records import JSON
from harness_dialogues.desk.world import REASONS, Change, Order, World


def _tool(name: str, description: str, /, **arguments: JSON) -> Tool:
    return Tool(
        name,
        description,
        {
            "type": "object",
            "properties": arguments,
            "required": list(arguments),
            "additionalProperties": False,
        },
    )


_TEXT: JSON = {"type": "string"}
_ORDER: JSON = {"type": "string", "description": "Number of the order."}


class OrderDesk(Environment):
    """Customers, orders and stock of a small shop. The tools do not enforce all rules."""

    tools = (
        _tool(
            "find_customer", "The customer with this name and postcode.", name=_TEXT, postcode=_TEXT
        ),
        _tool("show_order", "What is known of an order.", order=_ORDER),
        _tool("show_stock", "How many of an article there are, by size.", article=_TEXT),
        _tool(
            "cancel_order",
            "Cancel an order.",
            order=_ORDER,
            reason={"type": "string", "enum": list(REASONS)},
        ),
        _tool("change_size", "Change the size of what was ordered.", order=_ORDER, size=_TEXT),
        _tool("change_address", "Send an order elsewhere.", order=_ORDER, street=_TEXT, town=_TEXT),
        _tool("take_back", "Take a delivered order back.", order=_ORDER),
    )

    def payload(self, task: Task, limits: Mapping[str, JSON]) -> Mapping[str, JSON]:
        return {"world": task.data["world"], "max_chars": limits["max_chars"]}

    async def open(self, payload: Mapping[str, JSON], attempt: str) -> Desk:
        return Desk(
            cast("World", copy.deepcopy(payload["world"])), cast("int", payload["max_chars"])
        )


class Desk:
    """The desk of one attempt.

    Its final state has the changes of orders by number, without unchanged ones.
    """

    def __init__(self, world: World, max_chars: int) -> None:
        self._world, self._max_chars = world, max_chars
        self._changes: dict[str, Change] = {}

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        # A policy may send a number where the schema has a text.
        texts = {name: str(value).strip() for name, value in arguments.items()}
        observation: Observation = getattr(self, f"_{tool}")(**texts)
        return Observation(observation.text[: self._max_chars], observation.ok)

    async def close(self) -> Mapping[str, JSON]:
        return self._changes

    def _find_customer(self, name: str, postcode: str) -> Observation:
        for number, person in self._world["customers"].items():
            if (person["name"].casefold(), person["postcode"]) == (name.casefold(), postcode):
                orders = []
                for order, details in self._world["orders"].items():
                    if details["customer"] == number:
                        orders.append(order)
                return _shown({"customer": number, "orders": orders})
        return Observation(f"There is no customer {name!r} with postcode {postcode!r}.", ok=False)

    def _show_order(self, order: str) -> Observation:
        details = self._world["orders"].get(order)
        return (
            _shown({"order": order, **details, **self._changes.get(order, {})})
            if details
            else _none(order)
        )

    def _show_stock(self, article: str) -> Observation:
        sizes = self._world["stock"].get(article)
        if sizes is None:
            return Observation(
                f"There is no article {article!r}. Articles: {', '.join(self._world['stock'])}.",
                ok=False,
            )
        return _shown({"article": article, "stock": sizes})

    def _cancel_order(self, order: str, reason: str) -> Observation:
        return self._change(order, "being packed", status="cancelled", reason=reason)

    def _change_size(self, order: str, size: str) -> Observation:
        details = self._world["orders"].get(order)
        if details and not self._world["stock"][details["article"]].get(size):
            return Observation(
                f"The {details['article']} is not in stock in size {size!r}.", ok=False
            )
        return self._change(order, "being packed", size=size)

    def _change_address(self, order: str, street: str, town: str) -> Observation:
        return self._change(order, "being packed", street=street, town=town)

    def _take_back(self, order: str) -> Observation:
        return self._change(order, "delivered", status="returned")

    def _change(self, order: str, required_status: str, **change: str) -> Observation:
        details: Order | None = self._world["orders"].get(order)
        if details is None:
            return _none(order)
        now = self._changes.get(order, {})
        status = now.get("status", details["status"])
        if status != required_status:
            return Observation(
                f"Order {order} is {status}: this can be done only while one is {required_status}.",
                ok=False,
            )
        original: Mapping[str, object] = {**details}
        # A value that is changed back is no change, so that states compare by what differs.
        changed = {}
        for name, value in {**now, **change}.items():
            if original.get(name) != value:
                changed[name] = value
        changes = {**self._changes, order: changed}
        self._changes = {number: values for number, values in changes.items() if values}
        return Observation(f"Done. {self._show_order(order).text}")


def _shown(data: Mapping[str, object]) -> Observation:
    return Observation(json.dumps(data))


def _none(order: str) -> Observation:
    return Observation(f"There is no order {order!r}.", ok=False)
