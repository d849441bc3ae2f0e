"""A customer and a clerk of the desk without a model: rules that use only a request's messages.

    python -m harness.mock_model.server --script harness_dialogues.desk.scripted:script

serves both, as an endpoint for `harness eval` and `harness doctor`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.mock_model.completion import Reply
from harness.mock_model.server import ReceivedRequest
from harness_dialogues.desk.world import REASONS, RETURN_DAYS
from harness_dialogues.prompts import STOP
from harness_sql.tool_loop.scenarios import calling

Message = Mapping[str, Any]
Messages = Sequence[Message]
REFUSED = "I am sorry, that cannot be done."


def script(request: ReceivedRequest) -> Reply:
    """Return the customer's reply or, if tools are offered, the clerk's."""
    return (clerk if "tools" in request.body else customer)(request.messages)


def customer(messages: Messages) -> Reply:
    """Identify the customer, state its wishes one by one, and end the conversation."""
    system = str(messages[0]["content"])
    wishes = re.findall(r"^- (.*)$", system.partition("Instructions:")[2], re.MULTILINE)
    name, postcode = re.findall(r"You are (.+), and your postcode is (\d+)\.", system)[0]
    spoken = sum(message["role"] == "assistant" for message in messages)
    if spoken >= len(wishes):
        return Reply(STOP)
    return Reply(
        wishes[spoken] if spoken else f"I am {name}, my postcode is {postcode}. {wishes[0]}"
    )


def clerk(messages: Messages) -> Reply:
    """Find customer and order, read the rules, and fulfil the request."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    first_text = str(messages[users[0]]["content"])
    wish = str(messages[users[-1]]["content"])
    accounts = [data for data in _outputs(messages) if "customer" in data and "orders" in data]
    if not accounts:
        name, postcode = re.findall(r"I am (.+), my postcode is (\d+)", first_text)[0]
        return _call("find_customer", name=name, postcode=postcode)
    number = re.findall(r"order (\d+)", wish)[0]
    if number not in accounts[0]["orders"]:
        return Reply(REFUSED)
    # An order that was read before this wish may have changed since.
    seen_now = _outputs(messages[users[-1] + 1 :])
    orders = [data for data in seen_now if data.get("order") == number]
    if not orders:
        return _call("show_order", order=number)
    if "" in seen_now[-1]:  # a tool's output that is no JSON: done or refused
        return Reply("It is done." if seen_now[-1][""].startswith("Done.") else REFUSED)
    return _act(wish, number, orders[0])


def _outputs(messages: Messages) -> list[Message]:
    return [_read(str(message["content"])) for message in messages if message["role"] == "tool"]


def _act(wish: str, number: str, order: Message) -> Reply:
    if order["status"] == "delivered" and order["days_since_delivery"] > RETURN_DAYS:
        return Reply(REFUSED)
    acts: tuple[tuple[str, Callable[[re.Match[str]], Reply]], ...] = (
        (r"cancel .*by mistake", lambda _: _call("cancel_order", order=number, reason=REASONS[0])),
        (r"cancel ", lambda _: _call("cancel_order", order=number, reason=REASONS[1])),
        (r" to (\w+)\.$", lambda match: _call("change_size", order=number, size=match[1])),
        (
            r"send order \d+ to (.+), (.+)\.$",
            lambda match: _call("change_address", order=number, street=match[1], town=match[2]),
        ),
        (r"take back", lambda _: _call("take_back", order=number)),
    )
    return next(act(match) for pattern, act in acts if (match := re.search(pattern, wish)))


def _call(tool: str, **arguments: str) -> Reply:
    return calling((tool, json.dumps(arguments)))


def _read(text: str) -> Message:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {"": text}
