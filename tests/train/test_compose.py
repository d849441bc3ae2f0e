"""What verl is told: by trainer mode, by number of devices, and what is refused before anything starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from harness.config import load_config
from harness.errors import ConfigError
from harness.training.checks import check
from harness.util.parsing import at, differing, flatten
from harness_verl.compose import verl_settings
from harness_verl.isolation import HOOK
from harness_verl.limits import micro_batch
from harness_verl.names import CROSS_ENTROPY
from harness_verl.trainer import VERLS_OWN

REJECTION = "train.algorithm=rejection"
SUPERVISED = "train.algorithm=supervised"
TOOLS = "agent=langgraph_tools"
MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look up models in the cache only: without a network, the hub retries for 23 s."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def settings(*overrides: str, device: str = "cuda", preset: str = "cpu") -> dict[str, Any]:
    config = load_config(preset, None, overrides)
    return verl_settings(config, device=device, model_path="m", run_dir=Path("/r"), steps=1)


EXECUTOR = "engine_kwargs.vllm.distributed_executor_backend"


def executor(*overrides: str, device: str = "cuda") -> str | None:
    rollout = settings(*overrides, device=device)["actor_rollout_ref"]["rollout"]
    backend: str | None = at(rollout, EXECUTOR)
    return backend


def test_an_engine_of_one_gpu_runs_its_worker_in_its_own_process() -> None:
    rollout = "verl.actor_rollout_ref.rollout"
    assert executor() == "uni"
    assert executor(f"{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes=1000") == "uni"
    assert executor(f"{rollout}.{EXECUTOR}=mp") == "mp"
    assert executor(f"{rollout}.tensor_model_parallel_size=2", "gpus=2") is None
    assert executor(f"{rollout}.engine_kwargs.vllm.tensor_parallel_size=2", "gpus=2") is None
    assert executor(f"{rollout}.engine_kwargs.vllm=null") == "uni"
    assert executor("deterministic=true") is None
    assert executor(device="cpu") is None


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("sync", "PromptReplayBuffer"),
        ("colocate_async", "PromptReplayBufferAsync"),
        ("separate_async", "PromptReplayBufferAsync"),
    ],
)
def test_the_sampler_follows_the_trainer_mode(mode: str, name: str) -> None:
    own = "verl.actor_rollout_ref.hybrid_engine=false"
    composed = settings(f"verl.trainer.v1.trainer_mode={mode}", own)
    assert composed["trainer"]["v1"]["sampler"]["custom_sampler"]["name"] == name
    assert composed["trainer"]["v1"].get("trainer_mode", "sync") == mode


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl")
def test_every_sampler_is_of_the_class_that_its_trainer_uses() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

    from harness_verl import sampler
    from harness_verl.compose import SAMPLERS

    assert not issubclass(getattr(sampler, SAMPLERS["sync"]), ReplayBufferAsync)
    assert issubclass(getattr(sampler, SAMPLERS["sync"]), ReplayBuffer)
    for mode in ("colocate_async", "separate_async"):
        assert issubclass(getattr(sampler, SAMPLERS[mode]), ReplayBufferAsync)


@pytest.mark.parametrize(
    ("overrides", "device", "message"),
    [
        (
            ["verl.trainer.v1.trainer_mode=later"],
            "cuda",
            "none of sync, colocate_async, separate_async",
        ),
        (["verl.trainer.v1.trainer_mode=separate_async"], "cuda", "hybrid_engine=false"),
        (["verl.trainer.v1.trainer_mode=separate_async"], "cpu", "use colocate_async"),
        (["gpus=3"], "cuda", "choose a multiple of 3"),
        (
            ["gpus=8", "train.batch_size=8", "train.mini_batch_size=1"],
            "cuda",
            "train.mini_batch_size",
        ),
        (["train.mini_batch_size=32"], "cuda", "larger than train.batch_size"),
        (
            ["gpus=2", "verl.actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
            "cuda",
            "takes 4 devices",
        ),
        (
            ["gpus=2", "verl.actor_rollout_ref.rollout.tensor_model_parallel_size=2"],
            "cpu",
            "on a CPU",
        ),
        (["train.packed=false", f"verl.{MICRO}=48"], "cpu", "does not divide the 64 rows"),
        (
            ["train.credit=turn", "train.batching=verl"],
            "cpu",
            "set train.batching=by_rollout with it",
        ),
        (
            ["train.credit=role", "verl.algorithm.adv_estimator=rloo"],
            "cpu",
            "only grpo does here, not .*=rloo",
        ),
        (
            ["train.credit=turn", "verl.algorithm.use_kl_in_reward=true"],
            "cpu",
            "set train.kl_coefficient instead",
        ),
        (
            ["verl.actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "gpus=2"],
            "cuda",
            "install flash-attn",
        ),
        ([REJECTION, "train.batching=verl"], "cpu", "set train.batching=by_rollout with it"),
        (
            [REJECTION, "train.kl_coefficient=0.1"],
            "cpu",
            "set train.kl_coefficient=0 with it, not 0.1",
        ),
        (
            [REJECTION, "train.entropy_coefficient=0.1"],
            "cpu",
            "set train.entropy_coefficient=0 with it",
        ),
        (
            [REJECTION, "verl.algorithm.adv_estimator=rloo"],
            "cpu",
            "leave out verl.algorithm.adv_estimator=rloo",
        ),
        (
            [REJECTION, "verl.algorithm.use_kl_in_reward=true"],
            "cpu",
            "leave out verl.algorithm.use_kl_in_reward",
        ),
        (
            [REJECTION, "verl.actor_rollout_ref.actor.policy_loss.loss_mode=gspo"],
            "cuda",
            "leave out .*loss_mode=gspo",
        ),
        ([REJECTION], "npu", "not made for npu"),
        ([SUPERVISED], "npu", "gold answers and nothing else, which is not made for npu"),
        ([SUPERVISED, "train.batching=verl"], "cpu", "set train.batching=by_rollout with it"),
        ([SUPERVISED, "train.kl_coefficient=0.1"], "cpu", "set train.kl_coefficient=0 with it"),
        ([SUPERVISED, "sampling.temperature=0"], "cpu", "the loss is computed at this temperature"),
        (
            [SUPERVISED, "verl.algorithm.rollout_correction.bypass_mode=false"],
            "cpu",
            "leave out verl.algorithm.rollout_correction.bypass_mode=False",
        ),
        (
            [SUPERVISED, "verl.actor_rollout_ref.actor.policy_loss.loss_mode=gspo"],
            "cpu",
            "leave out .*loss_mode=gspo",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    overrides: list[str], device: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings(*overrides, device=device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("verl.foo.bar=1", "verl has no option 'foo'. `--set +verl.foo=VALUE` adds one on purpose"),
        (
            "verl.actor_rollout_ref.actor.clip_ratoi_low=1",
            "did you mean 'verl.actor_rollout_ref.actor.clip_ratio_low'?",
        ),
        ("verl.clip_ratio_low=1", "did you mean 'verl.actor_rollout_ref.actor.clip_ratio_low'?"),
    ],
)
def test_an_option_that_verl_does_not_have_is_refused_where_a_run_is_asked_for(
    option: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(load_config("cpu", overrides=["device=cpu", option], agent="reference_sql"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_options_are_added_to_verl_on_purpose_and_where_it_hands_on_what_it_does_not_know() -> None:
    own = settings("+verl.foo.bar=1", "verl.ray_kwargs.ray_init.log_to_driver=false")
    assert own["foo"] == {"bar": 1} and own["ray_kwargs"]["ray_init"]["log_to_driver"] is False
    vllm = settings("verl.actor_rollout_ref.rollout.engine_kwargs.vllm.seed=1")[
        "actor_rollout_ref"
    ]["rollout"]
    assert vllm["engine_kwargs"]["vllm"]["seed"] == 1
    with pytest.raises(ConfigError, match="only options of verl can be added"):
        settings("+train.steps=1")


def test_devices_and_nodes_reach_verl_and_ray() -> None:
    own = settings("gpus=2", "nodes=2", device="cpu")
    assert own["trainer"]["n_gpus_per_node"] == 2 and own["trainer"]["nnodes"] == 2
    assert own["actor_rollout_ref"]["rollout"]["tensor_model_parallel_size"] == 1
    joined = settings("ray_address=10.0.0.1:6379", device="cpu")["ray_kwargs"]["ray_init"]
    # Ray refuses to be told the resources of a cluster that it joins.
    hook = {"worker_process_setup_hook": HOOK}
    assert joined == {"address": "10.0.0.1:6379", "runtime_env": hook}


@pytest.mark.parametrize(
    ("wanted", "rows", "devices", "size"),
    [(16, 64, 1, 16), (16, 16, 2, 8), (5, 12, 1, 4), (8, 4, 4, 1), (64, 64, 4, 16)],
)
def test_a_forward_pass_takes_what_divides_the_rows_of_a_device(
    wanted: int, rows: int, devices: int, size: int
) -> None:
    assert micro_batch(wanted, rows, devices) == size


@pytest.mark.parametrize(
    ("overrides", "device", "packed"),
    [
        ([], "cuda", True),
        (["deterministic=true"], "cuda", False),
        (["train.packed=false"], "cuda", False),
        (["deterministic=true"], "cpu", True),
        (["train.packed=false"], "cpu", False),
    ],
)
def test_rows_are_packed_unless_told_otherwise(
    overrides: list[str], device: str, packed: bool
) -> None:
    made = settings(*overrides, "train.micro_batch_tokens=100", device=device)["actor_rollout_ref"]
    assert (
        made["model"]["use_remove_padding"] == packed == made["actor"].get("use_dynamic_bsz", False)
    )
    attention = made["model"]["override_config"]["attn_implementation"]
    ours = ("harness_packed", "harness_shared", "flash_attention_2")
    assert attention in (ours if packed else ("sdpa",))
    # no less than the longest row, else verl refuses it
    assert made["actor"].get("ppo_max_token_len_per_gpu") == (384 + 64 if packed else None)


@pytest.mark.parametrize(
    ("overrides", "device", "attention"),
    [
        ([], "cuda", "harness_shared"),
        (["train.share_prompts=false"], "cuda", "harness_packed"),
        ([], "cpu", "harness_packed"),
        (["train.share_prompts=true"], "cpu", "harness_shared"),
        (["train.share_prompts=true", "train.packed=false"], "cuda", "sdpa"),
    ],
)
def test_prompts_are_shared_on_gpus_unless_chosen_otherwise(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], device: str, attention: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "flash_attn" else find_spec(name, *more),
    )
    made = settings(*overrides, device=device)["actor_rollout_ref"]["model"]
    assert made["override_config"]["attn_implementation"] == attention


@pytest.mark.parametrize(
    ("overrides", "skips"),
    [
        ([], True),
        (["train.packed=false"], False),
        (["train.mini_batch_size=8"], False),
        (["verl.actor_rollout_ref.actor.ppo_epochs=2"], False),
        (["verl.algorithm.rollout_correction.rollout_is=token"], False),
        (["verl.trainer.v1.trainer_mode=colocate_async"], False),
    ],
)
def test_old_log_probabilities_are_left_out_where_a_step_is_one_update(
    overrides: list[str], skips: bool
) -> None:
    made = settings(*overrides)
    correction = made["algorithm"].get("rollout_correction", {})
    loss = made["actor_rollout_ref"]["actor"].get("policy_loss", {})
    assert (
        correction.get("bypass_mode", False),
        loss.get("loss_mode", "vanilla") != "vanilla",
    ) == (skips, skips)


@pytest.mark.parametrize(
    ("overrides", "merges"),
    [
        ([TOOLS], True),
        ([], False),
        ([TOOLS, "train.merge_calls=false"], False),
        ([TOOLS, "train.batching=verl"], False),
    ],
)
def test_calls_of_a_dialogue_are_one_row_unless_told_otherwise(
    overrides: list[str], merges: bool
) -> None:
    made = settings(*overrides)
    assert made["trainer"]["v1"]["sampler"]["sampler_kwargs"]["merges"] == merges


@pytest.mark.parametrize(
    "option",
    [
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        "algorithm.adv_estimator=rloo",
        "algorithm.use_kl_in_reward=true",
        "algorithm.rollout_correction.rollout_is=sequence",
    ],
)
def test_what_counts_rows_is_refused_where_a_row_may_hold_several_calls(option: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"verl\.{option}.* set train.merge_calls=false with it".replace("=true", "=True"),
    ):
        settings(f"verl.{option}", TOOLS)
    settings(f"verl.{option}", "train.merge_calls=false", TOOLS)
    settings(f"verl.{option}")
    token = "verl.algorithm.rollout_correction.rollout_is=token"
    settings(token, "verl.actor_rollout_ref.actor.loss_agg_mode=token-sum", TOOLS)


def test_vllm_reads_tool_calls_where_the_program_offers_tools() -> None:
    def reads(*overrides: str, device: str = "cuda", model: str = "Qwen/Qwen2.5") -> dict[str, Any]:
        config = load_config("cpu", None, overrides)
        made = verl_settings(config, device=device, model_path=model, run_dir=Path("/r"), steps=1)
        engine = dict(at(made, "actor_rollout_ref.rollout.engine_kwargs.vllm", {}))
        engine.pop("distributed_executor_backend", None)
        return engine

    assert reads(TOOLS) == {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    assert reads(TOOLS, model="meta-llama/Llama-3.2-1B")["tool_call_parser"] == "llama3_json"
    coder = reads(TOOLS, model="Qwen/Qwen2.5-Coder-0.5B-Instruct")
    assert coder["tool_call_parser"] == "qwen2_5_coder"
    assert reads() == {} and reads(TOOLS, device="cpu") == {}
    # A framework's own way may be tools where the program's is text.
    assert reads("agent=openai_agents_sql_idiomatic")["tool_call_parser"] == "hermes"
    own = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser=qwen3_xml"
    assert reads(TOOLS, own) == {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "qwen3_xml",
    }


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl")
def test_verl_takes_the_options_of_tool_calls() -> None:
    from harness_verl.verl_config import compose

    config = load_config("cpu", None, [TOOLS, "verl.trainer.logger=[console]"])
    made = compose(
        verl_settings(config, device="cuda", model_path="m", run_dir=Path("/r"), steps=1)
    )
    assert made.actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser == "hermes"


def test_what_verl_tells_its_workers_on_gpus_they_know_from_the_start() -> None:
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV

    elsewhere = {
        "HCCL_HOST_SOCKET_PORT_RANGE",
        "HCCL_NPU_SOCKET_PORT_RANGE",
        "HSA_NO_SCRATCH_RECLAIM",
    }
    variables = {
        name: value
        for name, value in PPO_RAY_RUNTIME_ENV["env_vars"].items()
        if name not in elsewhere
    }
    assert (
        variables.pop("TOKENIZERS_PARALLELISM") == "true"
    )  # ours is false, which verl leaves as it is
    assert variables == VERLS_OWN


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.group_size=1", "GRPO compares rollouts of one task"),
        ("sampling.temperature=0", "all rollouts of a task would be the same"),
    ],
)
def test_what_nothing_can_be_learned_from_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(override)
    settings("rollout.group_size=1", "verl.algorithm.adv_estimator=remax", "train.batching=verl")


def test_calls_that_are_longer_than_what_a_policy_reads_are_refused(tmp_path: Path) -> None:
    def lengths(prompt: int, **about: Any) -> None:
        (tmp_path / "config.json").write_text(
            json.dumps({"max_position_embeddings": 2048, **about})
        )
        config = load_config(
            "cpu", None, [f"sampling.max_prompt_tokens={prompt}"], agent="reference_sql"
        )
        verl_settings(config, device="cpu", model_path=str(tmp_path), run_dir=Path("/r"), steps=1)

    lengths(2048 - 64)
    with pytest.raises(
        ConfigError,
        match=r"max_prompt_tokens 1985 \+ max_response_tokens 64 are more than .* 2048.*max_prompt_tokens=1984",
    ):
        lengths(1985)
    lengths(4000, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    with pytest.raises(ConfigError, match="more than the policy's 2048"):
        lengths(4000, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["agent=langgraph_sql_idiomatic"],
            "agent 'langgraph_sql_idiomatic' may send others .*reference_sql",
        ),
        (
            ["agent=reference_tools"],
            "program with replies for gold answers .*'tool_loop' of agent 'reference_tools'",
        ),
        (
            ["agent_match=check"],
            "trains the role 'write_query', which agent_match 'check' does not match",
        ),
        (["train.credit=turn"], "so train.credit=turn would be ignored"),
        (["reward.shuffle=true"], "so reward.shuffle=True would be ignored"),
        (["reward.inverted=0.1"], "so reward.inverted=0.1 would be ignored"),
        (["reward.training=executes"], "so reward.training=executes would be ignored"),
    ],
)
def test_what_supervised_training_would_ignore_is_refused(
    overrides: list[str], message: str
) -> None:
    base = ["device=cpu", "agent=reference_sql", SUPERVISED]
    check(load_config("cpu", overrides=base))
    with pytest.raises(ConfigError, match=message) as caught:
        check(load_config("cpu", overrides=[*base, *overrides]))
    assert "\n" not in str(caught.value)


def test_supervised_differs_from_grpo_in_what_is_trained_alone() -> None:
    for several in ((), ("train.mini_batch_size=8",)):
        grpo = flatten(settings(*several, device="cpu"))
        supervised = flatten(settings(*several, SUPERVISED, device="cpu"))
        assert set(differing([grpo, supervised])) - {
            "algorithm.rollout_correction.bypass_mode",
            "actor_rollout_ref.actor.policy_loss.loss_mode",
        } == {
            "trainer.v1.sampler.sampler_kwargs.threshold",
            "trainer.v1.sampler.sampler_kwargs.taught",
        }


def test_rejection_differs_from_grpo_in_what_is_trained_alone() -> None:
    """One optimizer step a step: the same loss, for which the batches have other advantages. Several: no ratio."""
    kwargs = "trainer.v1.sampler.sampler_kwargs.threshold"
    for several in ((), ("train.mini_batch_size=8",)):
        grpo, rejection = (
            flatten(settings(*several, *more, device="cpu")) for more in ((), (REJECTION,))
        )
        differ = {key: (grpo.get(key), rejection.get(key)) for key in differing([grpo, rejection])}
        loss = (
            {"actor_rollout_ref.actor.policy_loss.loss_mode": (None, CROSS_ENTROPY)}
            if several
            else {}
        )
        assert differ == {kwargs: (None, 0.5)} | loss
