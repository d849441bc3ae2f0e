"""The fields of `run.json` and of the rows of a run. Every field is documented here.

The types are plain JSON dictionaries, which pydantic validates when a record is read.
`python tools/fields.py` generates `docs/records.md` from this module, and a test checks every
published record.
"""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,  # pydantic supports `typing.NotRequired` from Python 3.12 on only
)

from typing_extensions import TypedDict

SCHEMA_VERSION = 1
"""Increased when current code could misread a record. Older records are converted when they are
read.
"""


class Commit(TypedDict):
    """The code that ran."""

    hash: Annotated[str, "hash of the commit, 40 hex digits"]
    dirty: Annotated[bool, "whether the source tree had uncommitted changes"]
    changes: NotRequired[
        Annotated[str, "hash of the uncommitted changes that affect a run; empty if there are none"]
    ]


class Launch(TypedDict):
    """One start of a run: the first one or a resumption."""

    started: Annotated[str, "UTC, ISO 8601"]
    commit: Annotated[Commit | None, "the code of this launch; None if unknown"]
    cores: NotRequired[Annotated[int | None, "logical processors that the run could use"]]
    runs_at_once: NotRequired[Annotated[int, "runs of its study that shared the machine"]]
    load: NotRequired[
        Annotated[
            float,
            "the machine's load average over a minute per processor, before the run's own work; "
            "missing if the system reports none",
        ]
    ]
    gpu_service: NotRequired[
        Annotated[
            str,
            "`mps` if NVIDIA's Multi-Process Service was available to share a GPU; missing if it "
            "was not, without a GPU, and in older records",
        ]
    ]
    ended: NotRequired[Annotated[str, "UTC, ISO 8601; missing if the launch was killed"]]
    status: NotRequired[Annotated[str, "`finished`, `failed` or `interrupted`"]]
    reason: NotRequired[Annotated[str, "why the launch ended early, in one line"]]
    wall_s: NotRequired[Annotated[float, "duration in seconds"]]
    data_changed: NotRequired[
        Annotated[list[str], "files of the task set that changed during the launch"]
    ]


class Study(TypedDict):
    """The study that the run belongs to."""

    name: Annotated[str, "name of the study"]
    job: Annotated[str, "arm and seed"]
    runs_at_once: Annotated[int, "number of runs that shared the machine"]


class Hardware(TypedDict):
    """The machine of the last launch."""

    machine: Annotated[str, "machine type, as printed by `uname -m`"]
    processor: Annotated[str, "model name of the processor"]
    cores: Annotated[int | None, "logical processors that the run could use"]
    memory_gib: Annotated[float, "memory of the machine"]
    gpus: NotRequired[Annotated[list[str], "names of the GPUs that the run could use"]]
    cuda: NotRequired[Annotated[str | None, "CUDA version for which torch was built"]]


class Counts(TypedDict):
    """Numbers of distinct tasks of a run."""

    train: Annotated[int, "training tasks"]
    val: Annotated[int, "validation tasks"]


class Distribution(TypedDict):
    """The distribution that provides the agent."""

    name: Annotated[str, "name of the distribution"]
    version: Annotated[str, "version of the distribution"]


class Sampling(TypedDict):
    """Sampling of one phase."""

    temperature: Annotated[float, "0 decodes greedily"]
    top_p: Annotated[float, "cumulative probability of the tokens to sample from"]
    max_tokens: Annotated[int, "most tokens of one reply"]
    chat_template_kwargs: NotRequired[
        Annotated[dict[str, Any], "arguments of the chat template, if any"]
    ]


Group = Literal["task set", "policy", "sampling", "training", "rollout", "reward", "agent"]


class Key(NamedTuple):
    """A key of the identity.

    Attributes:
        group: Its group in a list of differences.
        config: Configuration keys that decide it, by prefix.
        by_seed: Whether it must be equal only between runs of one seed.
    """

    group: Group
    config: tuple[str, ...] = ()
    by_seed: bool = False


_LENGTH = ("task", "train.batch_size", "train.steps", "train.epochs")
_AGENT, _TASKS, _ORDER = (
    Key("agent"),
    Key("task set", ("task",)),
    Key("task set", _LENGTH, by_seed=True),
)
_REWARD, _POLICY, _SAMPLING = (
    Key("reward", ("reward",)),
    Key("policy", ("policy",)),
    Key("sampling", ("sampling",)),
)


class Identity(TypedDict):
    """Everything that must be equal between compared runs, except agent, trained roles and seed."""

    program: Annotated[str, "name of the agent's program", _AGENT]
    prompts: Annotated[str, "hash of the program's texts", _AGENT]
    task_set: Annotated[
        dict[str, Any],
        "the task set's description: name, licence, counts, hashes, options",
        _TASKS,
    ]
    train_tasks: Annotated[str, "hash of the sorted ids of the training tasks; may follow the seed", _ORDER]
    val_tasks: Annotated[str, "hash of the ids of the validation tasks", _TASKS]
    data_order: Annotated[str, "hash of the ids of the training tasks in order; follows the seed", _ORDER]
    reward: Annotated[str, "name and version", _REWARD]
    reward_options: Annotated[
        dict[str, Any], "the reward's options, or only those that decide a verdict", _REWARD
    ]
    reward_range: NotRequired[
        Annotated[list[float], "lowest and highest reward; 0 and 1 if missing", _REWARD]
    ]
    answer_form: NotRequired[
        Annotated[
            str, "form of the answers that the prompts ask for, if the reward decides it", _AGENT
        ]
    ]
    reward_shuffled: Annotated[
        bool,
        "whether verdicts were exchanged between rollouts, a control in which nothing can be "
        "learned",
        _REWARD,
    ]
    reward_training: NotRequired[
        Annotated[
            dict[str, Any],
            "version and options of the reward that trains; if missing, the reward of the verdicts",
            _REWARD,
        ]
    ]
    reward_inverted: NotRequired[
        Annotated[
            float,
            "share of training rollouts trained with the opposite verdict; none if missing",
            _REWARD,
        ]
    ]
    model: Annotated[
        str,
        "the initial policy: hash of its weights and tokenizer, or `ID@COMMIT` on Hugging Face",
        _POLICY,
    ]
    role_models: NotRequired[
        Annotated[
            dict[str, str],
            "for each role that another model answers: that model, in the form of `model` or as "
            "`MODEL at URL`",
            Key("policy", ("roles",)),
        ]
    ]
    demonstrations: NotRequired[
        Annotated[str, "hash of the demonstrations in the policy's folder, if it has any", _POLICY]
    ]
    sampling_train: Annotated[Sampling, "sampling in training", _SAMPLING]
    sampling_val: Annotated[
        Sampling, "sampling in validation", Key("sampling", ("sampling", "eval.temperature"))
    ]
    samples: NotRequired[
        Annotated[
            int,
            "rollouts per task in an evaluation; 1 if missing",
            Key("sampling", ("eval.samples",)),
        ]
    ]
    max_prompt_tokens: Annotated[int, "most tokens of one prompt", _SAMPLING]
    tools: NotRequired[
        Annotated[str, "hash of the tools that are offered to the policy, if any", _AGENT]
    ]
    max_turns: Annotated[
        int,
        "most answers of an agent per question, or most rounds of tool calls",
        Key("agent", ("max_turns",)),
    ]
    sandbox: Annotated[dict[str, Any], "limits of one tool call", Key("rollout", ("sandbox",))]
    group_size: Annotated[
        int, "rollouts per task in a step", Key("training", ("rollout.group_size",))
    ]
    rollout_timeout_s: Annotated[
        float, "deadline of one attempt", Key("rollout", ("rollout.timeout_s",))
    ]
    rollout_retries: Annotated[
        int,
        "further attempts after an infrastructure failure",
        Key("rollout", ("rollout.retries",)),
    ]
    train: Annotated[
        dict[str, Any],
        "the section `train`, without options that cannot change what is learned",
        Key("training", ("train",)),
    ]
    steps: Annotated[int, "total number of training steps", Key("training", _LENGTH)]
    batch_invariant: NotRequired[
        Annotated[
            bool,
            "whether vLLM computed each reply independently of its batch; missing if it did not, "
            "and for an endpoint",
            Key("sampling", ("rollout.batch_invariant",)),
        ]
    ]
    engine_variables: NotRequired[
        Annotated[
            dict[str, str],
            "environment variables of vLLM that can change replies, on a GPU, if any is set",
            Key("sampling"),
        ]
    ]
    deterministic: NotRequired[
        Annotated[bool, "as configured; false if missing", Key("training", ("deterministic",))]
    ]
    verl: Annotated[
        dict[str, Any], "the trainer's own settings, as configured", Key("training", ("verl",))
    ]


class Measured(TypedDict):
    """A mean over tasks."""

    mean: Annotated[float, "mean over the tasks with enough scored samples"]
    interval_95: Annotated[list[float], "95 % interval of the mean"]
    left_out: NotRequired[
        Annotated[int, "tasks left out, because fewer than K of their samples are scored"]
    ]


class Samples(TypedDict):
    """Figures from several samples per task; `harness/compare/sampled.py` explains them."""

    samples: Annotated[int, "samples requested per task"]
    tasks: Annotated[int, "tasks with a scored sample; the others are in no mean"]
    short: Annotated[
        int,
        "tasks with fewer scored samples than requested; a measure of K leaves out tasks with "
        "fewer than K",
    ]
    measures: Annotated[
        dict[str, Measured],
        "`best_K`: the best of K (pass@K); `worst_K`: the worst (pass^K); `agreed`: self-consistency",
    ]


class Replies(TypedDict):
    """What the policy's replies say of the servers that gave them; of a training, of its last validation."""

    replies: Annotated[int, "calls with an answer"]
    empty: Annotated[int, "answered calls with neither text nor tool calls"]
    text_elsewhere: Annotated[
        dict[str, int], "number of rollouts by the field with the text of empty replies"
    ]
    rate_limits: Annotated[int, "calls refused by a rate limit"]
    rate_limit_s: Annotated[float, "total seconds that calls waited because of rate limits"]
    served_models: Annotated[
        dict[str, int], "number of rollouts by the model that a server named, if there are several"
    ]
    failures: NotRequired[
        Annotated[
            dict[str, int],
            "number of calls without an answer by code, in rollouts that ended `ok`",
        ]
    ]


class Accuracy(TypedDict):
    """Accuracy over the tasks of one difficulty or cluster."""

    accuracy: Annotated[float, "mean reward of the tasks with a scored rollout"]
    tasks: Annotated[int, "number of tasks with a scored rollout"]


class Scores(TypedDict):
    """Figures from the rows of a run; a training has the first part, an evaluation the second."""

    val_accuracy_initial: NotRequired[
        Annotated[float | None, "mean validation reward before the first step"]
    ]
    val_accuracy_final: NotRequired[
        Annotated[float | None, "mean validation reward after the last validated step"]
    ]
    val_curve: NotRequired[Annotated[dict[str, float], "mean validation reward by step"]]
    steps: NotRequired[Annotated[int, "number of trained steps"]]
    signal: NotRequired[
        Annotated[
            float | None,
            "share of groups of training rollouts with a training signal: different rewards, or "
            "for `rejection` a rollout to train on",
        ]
    ]
    no_signal: NotRequired[
        Annotated[str, "why nothing could be learned, in sentences; empty if something could"]
    ]
    step_s_median: NotRequired[Annotated[float | None, "seconds of the median step"]]
    rollout_probs_diff_max: NotRequired[
        Annotated[
            float | None, "largest difference of a token's probability between rollout and trainer"
        ]
    ]
    graded: NotRequired[
        Annotated[
            bool,
            "whether mean rewards are no accuracy: the reward declares so, or a value was not 0 or "
            "1",
        ]
    ]
    accuracy: NotRequired[Annotated[float | None, "mean reward of scored rollouts"]]
    interval_95: NotRequired[Annotated[list[float] | None, "95 % interval of `accuracy`"]]
    tasks: NotRequired[Annotated[int, "number of tasks"]]
    scored: NotRequired[Annotated[int, "rollouts with a verdict; one per task unless sampled"]]
    unscored: NotRequired[Annotated[int, "rollouts without a verdict"]]
    samples: NotRequired[Annotated[Samples, "figures from several rollouts per task"]]
    agent_failed: NotRequired[Annotated[int, "rollouts that the agent failed, scored 0"]]
    agent_failure: NotRequired[
        Annotated[
            str,
            "most common reason for these failures, as a sentence; empty without failures",
        ]
    ]
    calls_with_tools: NotRequired[Annotated[int, "rollouts that offered tools"]]
    parsed_calls: NotRequired[
        Annotated[int, "rollouts with a tool call that the server parsed"]
    ]
    unread_calls: NotRequired[
        Annotated[int, "rollouts with what looks like a tool call that the server did not parse"]
    ]
    replies: NotRequired[
        Annotated[
            Replies,
            "summary of the replies, if some were empty, a rate was limited or several models "
            "answered",
        ]
    ]
    bounds: NotRequired[
        Annotated[
            list[float] | None,
            "accuracy with all unscored rollouts counted as wrong, and as right",
        ]
    ]
    outcomes: NotRequired[Annotated[dict[str, int], "number of attempts by outcome"]]
    by_difficulty: NotRequired[Annotated[dict[str, Accuracy], "accuracy by difficulty"]]
    reward_cost: NotRequired[
        Annotated[
            dict[str, int],
            "for a reward that calls a model: calls, failed calls, cached answers, tokens",
        ]
    ]
    reward_flags: NotRequired[Annotated[dict[str, int], "documented deviations met while scoring"]]
    empty_golds: NotRequired[Annotated[int, "number of golds with an empty result"]]


class Result(Scores):
    """The result of a run."""

    wall_s: Annotated[float, "total seconds of all launches"]
    data_changed: NotRequired[
        Annotated[
            list[str],
            "files of the task set that changed during the run, which is then not compared",
        ]
    ]


class Fingerprint(TypedDict):
    """Everything that a parity certificate depends on; hashes of 16 hex digits."""

    agent: Annotated[str, "name of the agent"]
    strict: Annotated[bool, "whether the agent must match its reference byte for byte"]
    prompts: Annotated[str, "hash of the program's texts"]
    scenarios: Annotated[str, "hash of the scripted episodes"]
    reference: Annotated[str, "hash of the reference agent's source"]
    agent_source: NotRequired[
        Annotated[
            str,
            "hash of the agent's package, or of its file and the files that it imports or names",
        ]
    ]
    frameworks: Annotated[dict[str, str], "versions of the agent's frameworks"]
    clients: NotRequired[Annotated[dict[str, str], "versions of the libraries that send requests"]]
    requirements: NotRequired[
        Annotated[
            str,
            "hash of the versions of all packages through which the agent can send a request",
        ]
    ]


class Certificate(TypedDict):
    """Result of the comparison of the agent with its program's reference."""

    schema: Annotated[int, "1"]
    agent: Annotated[str, "name of the agent"]
    strict: Annotated[
        bool,
        "true: the strict agent passed; false: the agent is idiomatic and was measured",
    ]
    hash: Annotated[str, "hash of the fingerprint"]
    fingerprint: Annotated[Fingerprint, "fingerprint of the agent at the comparison"]
    scenarios: Annotated[int, "number of scripted episodes"]
    accepted: Annotated[
        list[str],
        "names of the accepted differences between requests that occurred",
    ]
    deviation: Annotated[
        dict[str, Any] | None, "measured deviation of an idiomatic agent from the reference"
    ]
    made: Annotated[str, "UTC, ISO 8601"]


class ShadowDifference(TypedDict):
    """The first difference between a rollout and the reference agent's replay of it."""

    rollout_id: Annotated[str, "id of the rollout"]
    task_id: Annotated[str, "id of its task"]
    phase: Annotated[str, "`train` or `val`"]
    step: Annotated[int, "step of the rollout"]
    place: Annotated[str, "number and role of the call, and the part of its request that differs"]
    expected: Annotated[str, "the reference's request or answer there, shortened"]
    got: Annotated[str, "the agent's request or answer there, shortened"]


class Shadow(TypedDict):
    """Result of the shadow check of a strict agent's rollouts, over all launches."""

    checked: Annotated[int, "rollouts that were replayed with the reference agent"]
    identical: Annotated[int, "replayed rollouts with byte-identical requests and the same answer"]
    unchecked: Annotated[int, "chosen rollouts that could not be replayed"]
    reason: Annotated[str, "why the first of these could not be replayed; empty if there are none"]
    first_difference: Annotated[
        ShadowDifference | None,
        "the first difference; None if there is none",
    ]
    seconds: Annotated[float, "total seconds of all replays"]


class Parent(TypedDict):
    """The run that trained the policy of an evaluation."""

    run: Annotated[str, "id of the training"]
    step: Annotated[int, "step of the checkpoint"]


class Reading(TypedDict):
    """A reading of a reserved split; also a line of `readings.jsonl`."""

    at: Annotated[str, "UTC, ISO 8601"]
    by: Annotated[str, "user and machine"]
    run: Annotated[str, "id of the evaluation"]
    task_set: Annotated[str, "name of the task set"]
    split: Annotated[str, "the split"]
    agent: Annotated[str, "name of the agent"]
    model: Annotated[str, "the policy, as in `identity`"]
    max_turns: Annotated[int, "as in `identity`"]
    trained: Annotated[str, "the policy's training and step; empty if unknown"]
    earlier: Annotated[
        list[str],
        "ids of earlier evaluations that read the split with the same task set, agent, policy and "
        "turns",
    ]


class RunRecord(TypedDict):
    """The content of `run.json`."""

    schema_version: Annotated[int, "1"]
    id: Annotated[str, "name of the run's folder"]
    kind: Annotated[Literal["train", "eval"], "`train` for a training, `eval` for an evaluation"]
    status: Annotated[str, "`running`, `finished`, `failed` or `interrupted`"]
    reason: NotRequired[Annotated[str, "why the run did not finish, in one line"]]
    agent: Annotated[str, "name of the agent; for a mixture, all names separated by commas"]
    mixture: NotRequired[
        Annotated[dict[str, Distribution | None], "for a mixture, the distribution of each agent"]
    ]
    agent_match: Annotated[str, "regular expression that selected the trained roles"]
    seed: Annotated[int, "seed of the run"]
    roles: NotRequired[
        Annotated[
            dict[str, str],
            "by role, a description of the model that answered it instead of the policy",
        ]
    ]
    tool_parser: NotRequired[
        Annotated[
            str,
            "parser of tool calls in replies, by vLLM's name; missing if the agent offers no "
            "tools, and for endpoints",
        ]
    ]
    launches: Annotated[list[Launch], "all launches, in order"]
    study: NotRequired[Annotated[Study | None, "the study of the run; None if it belongs to none"]]
    parent: NotRequired[Annotated[Parent | None, "for an evaluation, the training of its policy"]]
    reading: NotRequired[Annotated[Reading, "for an evaluation on a reserved split, the record of that reading"]]
    harness_version: Annotated[str, "version of harness"]
    commit: Annotated[Commit | None, "the code of the last launch"]
    versions: Annotated[
        dict[str, str | None], "versions of Python and of libraries that affect results"
    ]
    frameworks: Annotated[dict[str, str], "versions of the agent's frameworks"]
    hardware: Annotated[Hardware, "the machine of the last launch"]
    device: Annotated[str, "`cpu`, `cuda` or `npu`"]
    tasks: Annotated[Counts, "numbers of tasks"]
    graded: NotRequired[
        Annotated[bool, "whether the reward declares values other than 0 and 1"]
    ]
    identity: Annotated[Identity, "settings and data that compared runs must share"]
    parity: Annotated[Certificate | None, "certificate that the agent matches its reference"]
    shadow: NotRequired[
        Annotated[
            Shadow | None,
            "shadow check of a strict agent; None until the run ends; missing if not checked",
        ]
    ]
    agent_fingerprint: NotRequired[
        Annotated[
            str,
            "hash of everything that a certificate depends on, by which a later certificate is "
            "found",
        ]
    ]
    agent_source: NotRequired[
        Annotated[str, "`agent_source` of the fingerprint; a resumed run must have the same"]
    ]
    agent_distribution: Annotated[
        Distribution | None, "distribution of the agent; None for a mixture or an agent in a file"
    ]
    config: Annotated[dict[str, Any], "the resolved configuration, which can be run again"]
    result: Annotated[Result | None, "None until the run ends"]
