"""Roles that the policy does not answer: what is refused, and a policy served beside a run on a real server."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from harness.config import Config, load_config, validate
from harness.errors import ConfigError, EnvironmentProblem, UserError
from harness.policies import resolve
from harness.policies.roles import Answerer, answerers, answering
from harness.rollout.stack import RolloutWork
from harness.runs.folder import RunFolder
from harness.training.checks import check
from harness.training.data import load_data, same_parts
from harness.training.record import identity, role_models, run_record
from harness_study.plan import Study, differences, jobs_of, varied_keys

LOCAL = "http://127.0.0.1:8000/v1"


def config(*settings: str, agent: str = "reference_sql", device: str = "cpu") -> Config:
    return load_config("cpu", None, [f"device={device}", *settings], agent=agent)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["roles.chek_query.policy=pocket-sql"],
            "roles.chek_query: .* no role of that name; did you mean 'check_query'",
        ),
        (
            ["roles.write_query.policy=pocket-sql"],
            "roles.write_query: agent_match 'write' trains this role",
        ),
        (
            ["roles.check_query.policy=pocket-sql", "agent_match=."],
            "roles.check_query: agent_match '.' trains",
        ),
        (
            ["roles.check_query.endpont=x"],
            "unknown .* 'roles.check_query.endpont'.*; did you mean .*endpoint'",
        ),
        (
            [f"roles.check_query.endpoint={LOCAL}"],
            "roles.check_query': names an endpoint and not its model",
        ),
        (
            ["roles.check_query.step=3"],
            "roles.check_query': has step without policy; add policy, or leave step out",
        ),
        (["roles.check_query.model=m"], "roles.check_query': has model without endpoint"),
        (
            [f"roles.check_query={{policy: p, endpoint: '{LOCAL}', model: m}}"],
            "names an endpoint and a policy",
        ),
        (
            ["roles.check_query={endpoint: 'http://me:secret@host/v1', model: m}"],
            "holds a user or password",
        ),
        (
            ["roles.check_query={endpoint: here, model: m}"],
            "roles.check_query.endpoint 'here' is no URL",
        ),
        (
            [f"roles.check_query={{endpoint: '{LOCAL}', model: m, api_key_env: HARNESS_NO_KEY}}"],
            "roles.check_query.api_key_env: the environment variable HARNESS_NO_KEY is not set",
        ),
    ],
)
def test_what_roles_cannot_mean_is_refused_in_one_line(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check(config(*settings))
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_on_a_gpu_an_endpoint_is_what_is_possible() -> None:
    gpu = ("roles.check_query.policy=pocket-sql",)
    with pytest.raises(
        ConfigError, match=r"roles.check_query.policy: on cuda .* name roles.check_query.endpoint"
    ):
        check(config(*gpu, device="cuda"))
    check(config(f"roles.check_query={{endpoint: '{LOCAL}', model: m}}", device="cuda"))


def test_an_evaluation_may_have_a_trained_role_answered_by_another() -> None:
    check(config("roles.write_query.policy=pocket-sql"), trains=False)


@pytest.mark.parametrize(
    ("policy", "more", "message"),
    [
        ("./nowhere", "", "roles.check_query: there is no folder nowhere"),
        (
            "pocket-sql",
            "step: 3",
            "roles.check_query: step is of a run's checkpoints, and pocket-sql is no run folder",
        ),
        (
            "pocket-sql",
            "revision: main",
            "roles.check_query: .*pocket-sql is no id on Hugging Face",
        ),
    ],
)
def test_a_missing_policy_is_refused_by_its_role(policy: str, more: str, message: str) -> None:
    with pytest.raises((ConfigError, EnvironmentProblem), match=message):
        load_data(config(f"roles.check_query={{policy: {policy}, {more}}}"))


def test_a_policy_too_small_for_the_runs_prompts_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="roles.check_query: pocket-sql reads and writes .* tokens together"
    ):
        answerers(
            config("roles.check_query.policy=pocket-sql", "sampling.max_prompt_tokens=100000")
        )


def test_a_role_that_names_nothing_is_the_policys() -> None:
    """So that an axis of a study can have none among its values."""
    plain = config()
    assert (
        config("roles.check_query.policy=null").dump() == plain.dump()
        and "roles" not in plain.dump()
    )
    named = config("roles.check_query.policy=pocket-sql")
    assert named.dump()["roles"] == {"check_query": {"policy": "pocket-sql"}}
    assert validate(named.dump()) == named


def test_what_answers_a_role_is_part_of_the_identity(tmp_path: Path) -> None:
    def known(*settings: str) -> dict[str, Any]:
        one = config(*settings)
        data = load_data(one)
        return dict(identity(one, data.task_set, [], [], data.policy, "cpu", answers=data.answers))

    own, frozen = known(), known("roles.check_query.policy=pocket-sql")
    elsewhere = known(f"roles.check_query={{endpoint: '{LOCAL}/', model: m}}")
    assert frozen["role_models"] == {"check_query": own["model"]} and "role_models" not in own
    assert elsewhere["role_models"] == {"check_query": f"m at {LOCAL}"}
    assert {key for key in frozen if frozen[key] != own.get(key)} == {"role_models"}
    copied = tmp_path / "copied"
    shutil.copytree(resolve("pocket-sql"), copied)
    assert known(f"roles.check_query.policy={copied}") == frozen  # wherever it lies


def test_a_run_does_not_go_on_with_another_model_for_a_role(tmp_path: Path) -> None:
    began = config("roles.check_query.policy=pocket-sql")
    data = load_data(began)
    folder = RunFolder.create(tmp_path, "x")
    folder.write(
        run_record(
            began,
            folder,
            data.task_set,
            data.train,
            data.val,
            data.policy,
            "cpu",
            answers=data.answers,
        )
    )
    assert folder.read().get("roles") == {"check_query": "pocket-sql"}
    same_parts(folder, began, data.task_set)
    other = tmp_path / "other"
    shutil.copytree(resolve("pocket-sql"), other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**settings, "changed": True}))
    for roles in (f"roles.check_query.policy={other}", "roles.check_query.policy=null"):
        with pytest.raises(
            UserError, match="a role's model is not the one that the run began with .*check_query"
        ):
            same_parts(folder, config(roles), data.task_set)


def test_a_study_may_vary_what_answers_a_role() -> None:
    arms = {"as it is": {}, "as it began": {"roles.check_query.policy": "pocket-sql"}}
    study = Study(name="x", preset="cpu", set={"agent": "reference_sql"}, arms=arms)
    jobs = jobs_of(study)
    assert varied_keys(study) == ["roles.check_query.policy"]
    assert differences(jobs) == {
        "roles.check_query.policy": {"as it is": None, "as it began": "pocket-sql"}
    }


def test_a_trainer_that_does_not_say_what_answers_a_role_is_refused(tmp_path: Path) -> None:
    class Work(RolloutWork):
        async def work(self, store: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"roles.check_query: .* `RolloutWork` takes `roles`"):
        Work(config("roles.check_query.policy=pocket-sql"), "m", tmp_path, "mark")


@pytest.mark.slow
def test_one_policy_of_two_roles_has_one_process_that_ends_with_the_block(tmp_path: Path) -> None:
    both = ("roles.check_query.policy=pocket-sql", "roles.rewrite_query.policy=pocket-sql")
    two = config(*both, "agent_match=^write")
    found = answerers(two)
    assert role_models(found) == dict.fromkeys(found, role_models(found)["check_query"])
    before = {child.pid for child in psutil.Process().children()}
    with answering(found, two, tmp_path) as roles:
        (server,) = [child for child in psutil.Process().children() if child.pid not in before]
        assert roles["check_query"] == roles["rewrite_query"]
        one = roles["check_query"]
        asked = {
            "model": one.model,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
        }
        more = {"temperature": 1.0, "seed": 3, "logprobs": True, "return_token_ids": True}
        with httpx.Client(trust_env=False, timeout=60) as http:
            url = f"{one.base_url}/chat/completions"
            assert http.post(url, json=asked).status_code == 401
            first, again = (
                http.post(
                    url, json=asked | more, headers={"authorization": f"Bearer {one.api_key}"}
                ).json()
                for _ in range(2)
            )
        assert (
            first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
            and first["prompt_token_ids"]
        )
        assert str(one.api_key) not in repr(one) and os.getpgid(server.pid) == server.pid
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_endpoints_need_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKERS_KEY", "sk-checker")
    named = config(
        f"roles.check_query={{endpoint: '{LOCAL}/', model: m, api_key_env: CHECKERS_KEY, token_ids: true}}"
    )
    found = answerers(named)
    with answering(found, named, tmp_path) as roles:
        one = roles["check_query"]
        assert (one.base_url, one.model, one.api_key, one.token_ids) == (
            LOCAL,
            "m",
            "sk-checker",
            True,
        )
    assert found == {
        "check_query": Answerer(f"m at {LOCAL}", one)
    } and "sk-checker" not in json.dumps(named.dump())
