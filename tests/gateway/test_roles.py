"""A role that another model answers: its calls go there, forced and recorded like all others."""

from __future__ import annotations

import socket

import pytest

from harness.gateway.attempts import call_seed
from harness.mock_model.completion import prompt_token_ids, response_token_ids
from harness.mock_model.server import Reply
from harness.util.endpoints import Endpoint

from .conftest import MESSAGES, SAMPLING, Attempt, error_code

pytestmark = pytest.mark.asyncio


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_role_is_answered_where_it_is_sent_with_the_runs_sampling(
    attempt: Attempt, scripted_server
):
    policy = scripted_server(["SELECT 1", "SELECT 2"], model="policy")
    other = scripted_server(["It is wrong."], model="other")
    await attempt.control.point(
        Endpoint(policy.base_url, "policy", token_ids=True),
        {"check_query": Endpoint(other.base_url, "other", "sk-other", token_ids=True)},
    )
    await attempt.open(sampling={**SAMPLING, "seed": 7})
    await attempt.call("write_query", model="policy")
    answer = await attempt.call("check_query", model="policy", temperature=0.1)
    await attempt.call("write_query", model="policy")
    models = await attempt.http.get(
        f"{attempt.url('check_query')}/models",
        headers={"authorization": f"Bearer {attempt.gateway.key}"},
    )
    transitions, failures = await attempt.close()

    assert answer.json()["choices"][0]["message"]["content"] == "It is wrong."
    assert len(policy.requests) == 2
    (sent,) = other.requests
    forced = {
        **SAMPLING,
        "seed": call_seed(7, "check_query", 0),
        "logprobs": True,
        "return_token_ids": True,
    }
    assert sent.body == {"model": "other", "messages": MESSAGES, **forced}
    assert sent.headers["authorization"] == "Bearer sk-other"
    assert all("sk-other" not in str(request.headers) for request in policy.requests)
    assert failures == [] and [call.role for call in transitions] == [
        "write_query",
        "check_query",
        "write_query",
    ]
    check = transitions[1]
    assert check.model == "other" and transitions[0].model == "policy"
    assert list(check.prompt_ids) == prompt_token_ids(MESSAGES)
    assert list(check.response_ids) == response_token_ids("It is wrong.") and len(
        check.logprobs
    ) == len(check.response_ids)
    # The name that agents were told is no wish of theirs; the temperature is.
    assert check.overridden == {"temperature": 0.1} and transitions[0].overridden == {}
    assert models.json()["data"][0]["id"] == "other"


async def test_a_dead_endpoint_of_a_role_fails_its_calls_alone(attempt: Attempt, scripted_server):
    policy = scripted_server(["SELECT 1"], model="policy")
    dead = f"http://127.0.0.1:{free_port()}/v1"
    await attempt.control.point(
        Endpoint(policy.base_url, "policy", token_ids=True),
        {"check_query": Endpoint(dead, "other")},
    )
    await attempt.open()
    refused, answered = await attempt.call("check_query"), await attempt.call("write_query")
    transitions, (failure,) = await attempt.close()

    assert (refused.status_code, error_code(refused), answered.status_code) == (
        502,
        "upstream_unreachable",
        200,
    )
    assert [call.role for call in transitions] == ["write_query"]
    assert (failure.role, failure.code, failure.cause) == (
        "check_query",
        "upstream_unreachable",
        "policy_server",
    )
    assert dead in failure.detail


async def test_an_endpoint_of_a_role_that_knows_no_token_ids_is_asked_for_none(
    attempt: Attempt, scripted_server
):
    policy = scripted_server(["SELECT 1"], model="policy")
    plain = scripted_server([Reply("fine")], model="plain", token_ids=False)
    await attempt.control.point(
        Endpoint(policy.base_url, "policy", token_ids=True),
        {"check_query": Endpoint(plain.base_url, "plain")},
    )
    await attempt.open()
    await attempt.call("check_query")
    await attempt.call("write_query")
    (check, write), failures = await attempt.close()
    assert failures == [] and plain.requests[0].body.keys() == {"model", "messages", *SAMPLING}
    assert check.response_ids is None and write.response_ids is not None
