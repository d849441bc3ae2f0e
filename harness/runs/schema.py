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

    hash: Annotated[str, "of the commit, 40 hex digits"]
    dirty: Annotated[bool, "whether files had changes that the commit does not have"]
    changes: NotRequired[
        Annotated[str, "of those, a hash of what decides a run; empty where nothing does"]
    ]


class Launch(TypedDict):
    """One start of a run: the first one or a resumption."""

    started: Annotated[str, "UTC, ISO 8601"]
    commit: Annotated[Commit | None, "the code of this launch; None where it is not known"]
    cores: NotRequired[Annotated[int | None, "logical processors that it could use"]]
    runs_at_once: NotRequired[Annotated[int, "runs of its study that shared the machine"]]
    load: NotRequired[
        Annotated[
            float,
            "the machine's load average over a minute ÷ its processors, before the run's own work; "
            "missing where the system has none",
        ]
    ]
    gpu_service: NotRequired[
        Annotated[
            str,
            "`mps` if NVIDIA's Multi-Process Service was there for programs that share a GPU; "
            "missing: it was not, no GPU, or an older record",
        ]
    ]
    ended: NotRequired[Annotated[str, "UTC, ISO 8601; missing where it was killed outright"]]
    status: NotRequired[Annotated[str, "how it ended: `finished`, `failed`, `interrupted`"]]
    reason: NotRequired[Annotated[str, "why it ended early, in a line"]]
    wall_s: NotRequired[Annotated[float, "seconds from its start to its end"]]
    data_changed: NotRequired[
        Annotated[list[str], "files of the task set that changed while it ran"]
    ]


class Study(TypedDict):
    """The study that the run belongs to."""

    name: Annotated[str, "the study's"]
    job: Annotated[str, "arm and seed"]
    runs_at_once: Annotated[int, "runs that shared the machine"]


class Hardware(TypedDict):
    """The machine of the last launch."""

    machine: Annotated[str, "as `uname -m` says"]
    processor: Annotated[str, "the model's name"]
    cores: Annotated[int | None, "logical processors that the run could use"]
    memory_gib: Annotated[float, "of the machine"]
    gpus: NotRequired[Annotated[list[str], "names of the GPUs that it could use"]]
    cuda: NotRequired[Annotated[str | None, "version of CUDA that torch was built for"]]


class Counts(TypedDict):
    """Numbers of distinct tasks of a run."""

    train: Annotated[int, "of training"]
    val: Annotated[int, "of validation"]


class Distribution(TypedDict):
    """The distribution that provides the agent."""

    name: Annotated[str, "of the distribution"]
    version: Annotated[str, "of the distribution"]


class Sampling(TypedDict):
    """Sampling of one phase."""

    temperature: Annotated[float, "0 decodes greedily"]
    top_p: Annotated[float, "share of the probability that is sampled from"]
    max_tokens: Annotated[int, "tokens of one reply at most"]
    chat_template_kwargs: NotRequired[
        Annotated[dict[str, Any], "what the chat template was told, where it was"]
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

    program: Annotated[str, "what the agent does", _AGENT]
    prompts: Annotated[str, "hash of the program's texts", _AGENT]
    task_set: Annotated[
        dict[str, Any],
        "what the task set says of itself: name, licence, counts, hashes, options",
        _TASKS,
    ]
    train_tasks: Annotated[str, "hash of the ids of training, sorted; may follow the seed", _ORDER]
    val_tasks: Annotated[str, "hash of the ids of validation", _TASKS]
    data_order: Annotated[str, "hash of the ids of training in order; follows the seed", _ORDER]
    reward: Annotated[str, "name and version", _REWARD]
    reward_options: Annotated[
        dict[str, Any], "as configured, or what of them decides a verdict", _REWARD
    ]
    reward_range: NotRequired[
        Annotated[list[float], "lowest and highest value; 0 and 1 where missing", _REWARD]
    ]
    answer_form: NotRequired[
        Annotated[
            str, "form of answers that the prompts ask for, where the reward decides it", _AGENT
        ]
    ]
    reward_shuffled: Annotated[
        bool, "whether this is the control in which nothing can be learned", _REWARD
    ]
    reward_training: NotRequired[
        Annotated[
            dict[str, Any],
            "version and options of the reward that trains; that of verdicts where missing",
            _REWARD,
        ]
    ]
    reward_inverted: NotRequired[
        Annotated[
            float,
            "share of training rollouts trained with the opposite verdict; none where missing",
            _REWARD,
        ]
    ]
    model: Annotated[
        str,
        "of the first policy: hash of its weights and tokenizer, or `ID@COMMIT` on Hugging Face",
        _POLICY,
    ]
    role_models: NotRequired[
        Annotated[
            dict[str, str],
            "of each role that the policy does not answer: the same of the policy that does, or `MODEL at URL`",
            Key("policy", ("roles",)),
        ]
    ]
    demonstrations: NotRequired[
        Annotated[str, "hash of the demonstrations in the policy's folder, where it has any", _POLICY]
    ]
    sampling_train: Annotated[Sampling, "of training", _SAMPLING]
    sampling_val: Annotated[
        Sampling, "of validation", Key("sampling", ("sampling", "eval.temperature"))
    ]
    samples: NotRequired[
        Annotated[
            int,
            "rollouts of a task in an evaluation; 1 where missing",
            Key("sampling", ("eval.samples",)),
        ]
    ]
    max_prompt_tokens: Annotated[int, "tokens of one prompt at most", _SAMPLING]
    tools: NotRequired[
        Annotated[str, "hash of the tools that the policy is told of, where it calls any", _AGENT]
    ]
    max_turns: Annotated[
        int,
        "answers that an agent may write, or rounds of tool calls",
        Key("agent", ("max_turns",)),
    ]
    sandbox: Annotated[dict[str, Any], "limits of one tool call", Key("rollout", ("sandbox",))]
    group_size: Annotated[
        int, "rollouts of a task in a step", Key("training", ("rollout.group_size",))
    ]
    rollout_timeout_s: Annotated[
        float, "deadline of one attempt", Key("rollout", ("rollout.timeout_s",))
    ]
    rollout_retries: Annotated[
        int,
        "further attempts after a failure of the infrastructure",
        Key("rollout", ("rollout.retries",)),
    ]
    train: Annotated[
        dict[str, Any],
        "the section `train` without what cannot change what is learned",
        Key("training", ("train",)),
    ]
    steps: Annotated[int, "training steps in all", Key("training", _LENGTH)]
    batch_invariant: NotRequired[
        Annotated[
            bool,
            "vLLM computed each reply independently of its batch; missing where it did not, and for an endpoint",
            Key("sampling", ("rollout.batch_invariant",)),
        ]
    ]
    deterministic: NotRequired[
        Annotated[bool, "as configured; missing: not", Key("training", ("deterministic",))]
    ]
    verl: Annotated[
        dict[str, Any], "the trainer's own settings, as configured", Key("training", ("verl",))
    ]


class Measured(TypedDict):
    """A mean over tasks."""

    mean: Annotated[float, "over the tasks that have a scored sample"]
    interval_95: Annotated[list[float], "95 % interval of it"]
    left_out: NotRequired[
        Annotated[int, "tasks that are not in it: fewer than K of their samples are scored"]
    ]


class Samples(TypedDict):
    """Figures from several samples per task; `harness/compare/sampled.py` explains them."""

    samples: Annotated[int, "asked for of every task"]
    tasks: Annotated[int, "with a scored sample: all others are in no mean"]
    short: Annotated[
        int,
        "of them, with fewer scored samples than asked for; a measure of K leaves out those with fewer than K",
    ]
    measures: Annotated[
        dict[str, Measured],
        "`best_K`: the best of K (pass@K); `worst_K`: the worst (pass^K); `agreed`: self-consistency",
    ]


class Replies(TypedDict):
    """What the policy's replies say of the servers that gave them; of a training, of its last validation."""

    replies: Annotated[int, "calls with an answer"]
    empty: Annotated[int, "of them, with neither text nor tool calls"]
    text_elsewhere: Annotated[
        dict[str, int], "rollouts by the field that held the text of empty replies"
    ]
    rate_limits: Annotated[int, "times that a server refused a call for its rate"]
    rate_limit_s: Annotated[float, "seconds that calls waited for it, summed"]
    served_models: Annotated[
        dict[str, int], "rollouts by the model that a server named, where there were several"
    ]
    failures: NotRequired[
        Annotated[dict[str, int], "calls without an answer by code, in rollouts that ended `ok`"]
    ]


class Accuracy(TypedDict):
    """Accuracy over the tasks of one difficulty or cluster."""

    accuracy: Annotated[float, "mean reward of the tasks that have a scored rollout"]
    tasks: Annotated[int, "how many have one"]


class Scores(TypedDict):
    """Figures from the rows of a run; a training has the first part, an evaluation the second."""

    val_accuracy_initial: NotRequired[
        Annotated[float | None, "mean validation reward before the first step"]
    ]
    val_accuracy_final: NotRequired[
        Annotated[float | None, "mean validation reward after the last validated step"]
    ]
    val_curve: NotRequired[Annotated[dict[str, float], "mean validation reward by step"]]
    steps: NotRequired[Annotated[int, "steps that were trained"]]
    signal: NotRequired[
        Annotated[
            float | None,
            "share of groups of training rollouts that teach: rewards differ, or of `rejection` the best is trained",
        ]
    ]
    no_signal: NotRequired[
        Annotated[str, "why nothing could be learned, as sentences; empty where something could"]
    ]
    step_s_median: NotRequired[Annotated[float | None, "seconds of a step, the median"]]
    rollout_probs_diff_max: NotRequired[
        Annotated[
            float | None, "largest difference of a token's probability between rollout and trainer"
        ]
    ]
    graded: NotRequired[
        Annotated[
            bool, "whether means are no accuracy: as the reward says, or a value was not 0 or 1"
        ]
    ]
    accuracy: NotRequired[Annotated[float | None, "mean reward of scored rollouts"]]
    interval_95: NotRequired[Annotated[list[float] | None, "95 % interval of it"]]
    tasks: NotRequired[Annotated[int, "tasks asked"]]
    scored: NotRequired[Annotated[int, "rollouts with a verdict; one a task unless sampled"]]
    unscored: NotRequired[Annotated[int, "rollouts without"]]
    samples: NotRequired[Annotated[Samples, "where a task had several rollouts"]]
    agent_failed: NotRequired[Annotated[int, "failed by the agent itself, scored 0"]]
    agent_failure: NotRequired[
        Annotated[str, "why most often, as a sentence; empty where it never failed"]
    ]
    calls_with_tools: NotRequired[Annotated[int, "rollouts that offered tools"]]
    parsed_calls: NotRequired[
        Annotated[int, "rollouts with a tool call that the server read out of a reply"]
    ]
    unread_calls: NotRequired[
        Annotated[int, "rollouts with what looks like a tool call that the server did not read"]
    ]
    replies: NotRequired[
        Annotated[
            Replies, "where replies were empty, a rate was limited, or several models answered"
        ]
    ]
    bounds: NotRequired[
        Annotated[list[float] | None, "accuracy if all unscored were wrong, and if all were right"]
    ]
    outcomes: NotRequired[Annotated[dict[str, int], "how attempts ended"]]
    by_difficulty: NotRequired[Annotated[dict[str, Accuracy], "accuracy by difficulty"]]
    reward_cost: NotRequired[
        Annotated[
            dict[str, int],
            "of a reward that asks a model: calls, failed calls, answers from its cache, tokens",
        ]
    ]
    reward_flags: NotRequired[Annotated[dict[str, int], "documented deviations met while scoring"]]
    empty_golds: NotRequired[Annotated[int, "golds that gave nothing"]]


class Result(Scores):
    """The result of a run."""

    wall_s: Annotated[float, "seconds of all launches together"]
    data_changed: NotRequired[
        Annotated[list[str], "files of the task set that changed while it ran: not compared"]
    ]


class Fingerprint(TypedDict):
    """Everything that a parity certificate depends on; hashes of 16 hex digits."""

    agent: Annotated[str, "its name"]
    strict: Annotated[bool, "whether it is to do what its reference does, byte for byte"]
    prompts: Annotated[str, "hash of the program's texts"]
    scenarios: Annotated[str, "hash of the scripted episodes"]
    reference: Annotated[str, "hash of the reference agent's source"]
    agent_source: NotRequired[Annotated[str, "hash of the source of the agent's package"]]
    frameworks: Annotated[dict[str, str], "versions of the agent's frameworks"]
    clients: NotRequired[Annotated[dict[str, str], "versions of the libraries that send requests"]]
    requirements: NotRequired[
        Annotated[str, "hash of the versions of all that the agent can send a request through"]
    ]


class Certificate(TypedDict):
    """Result of the comparison of the agent with its program's reference."""

    schema: Annotated[int, "1"]
    agent: Annotated[str, "its name"]
    strict: Annotated[bool, "passed; else the agent is idiomatic, and measured"]
    hash: Annotated[str, "of the fingerprint"]
    fingerprint: Annotated[Fingerprint, "of the agent, when it was compared"]
    scenarios: Annotated[int, "scripted episodes that were played"]
    accepted: Annotated[list[str], "accepted differences on the wire that were met"]
    deviation: Annotated[
        dict[str, Any] | None, "of an idiomatic agent: how far it is from the reference"
    ]
    made: Annotated[str, "UTC, ISO 8601"]


class ShadowDifference(TypedDict):
    """The first difference between a rollout and the reference agent's replay of it."""

    rollout_id: Annotated[str, "of the rollout"]
    task_id: Annotated[str, "of its task"]
    phase: Annotated[str, "`train` or `val`"]
    step: Annotated[int, "of the rollout"]
    place: Annotated[str, "number and role of the call, and where its request differs"]
    expected: Annotated[str, "what the reference does there, shortened"]
    got: Annotated[str, "what the agent did, shortened"]


class Shadow(TypedDict):
    """Result of the shadow check of a strict agent's rollouts, over all launches."""

    checked: Annotated[int, "rollouts that were replayed with the reference agent"]
    identical: Annotated[int, "of them, those with byte-identical requests and the same answer"]
    unchecked: Annotated[int, "rollouts that were chosen and could not be replayed"]
    reason: Annotated[str, "why the first of those could not be; empty where all were"]
    first_difference: Annotated[ShadowDifference | None, "None where there is none"]
    seconds: Annotated[float, "of all replays together"]


class Parent(TypedDict):
    """The run that trained the policy of an evaluation."""

    run: Annotated[str, "id of the training"]
    step: Annotated[int, "of its checkpoint"]


class Reading(TypedDict):
    """A reading of a reserved split; also a line of `readings.jsonl`."""

    at: Annotated[str, "UTC, ISO 8601"]
    by: Annotated[str, "user and machine"]
    run: Annotated[str, "id of the evaluation"]
    task_set: Annotated[str, "its name"]
    split: Annotated[str, "what was read"]
    agent: Annotated[str, "its name"]
    model: Annotated[str, "the policy, as in `identity`"]
    max_turns: Annotated[int, "as in `identity`"]
    trained: Annotated[str, "the policy's training and step; empty where it is not known"]
    earlier: Annotated[
        list[str],
        "evaluations that read the split before with task set, agent, policy and turns the same",
    ]


class RunRecord(TypedDict):
    """The content of `run.json`."""

    schema_version: Annotated[int, "1"]
    id: Annotated[str, "name of the run's folder"]
    kind: Annotated[Literal["train", "eval"], "trained, or measured"]
    status: Annotated[str, "`running`, `finished`, `failed` or `interrupted`"]
    reason: NotRequired[Annotated[str, "why it did not finish, in a line"]]
    agent: Annotated[str, "its name; of a mixture all names, with commas"]
    mixture: NotRequired[
        Annotated[dict[str, Distribution | None], "of a mixture: where each agent comes from"]
    ]
    agent_match: Annotated[str, "expression that chose the trained roles"]
    seed: Annotated[int, "the run's"]
    roles: NotRequired[
        Annotated[dict[str, str], "what answered roles that the policy did not, by role, in words"]
    ]
    tool_parser: NotRequired[
        Annotated[
            str,
            "what read tool calls out of replies, by vLLM's name; missing where the agent offers no "
            "tools, and of endpoints",
        ]
    ]
    launches: Annotated[list[Launch], "every start of it"]
    study: NotRequired[Annotated[Study | None, "None where it is of none"]]
    parent: NotRequired[Annotated[Parent | None, "of an evaluation: where its policy was trained"]]
    reading: NotRequired[Annotated[Reading, "of an evaluation on a reserved split"]]
    harness_version: Annotated[str, "of this package"]
    commit: Annotated[Commit | None, "the code of the last launch"]
    versions: Annotated[
        dict[str, str | None], "of Python and of the libraries that decide what is computed"
    ]
    frameworks: Annotated[dict[str, str], "versions of the agent's frameworks"]
    hardware: Annotated[Hardware, "the machine"]
    device: Annotated[str, "`cpu`, `cuda` or `npu`"]
    tasks: Annotated[Counts, "how many"]
    graded: NotRequired[
        Annotated[bool, "whether the reward says that it gives values other than 0 and 1"]
    ]
    identity: Annotated[Identity, "what must be equal where runs are compared"]
    parity: Annotated[Certificate | None, "that the agent does what its reference does"]
    shadow: NotRequired[
        Annotated[
            Shadow | None,
            "shadow check of a strict agent; None until the run ends; missing: not checked",
        ]
    ]
    agent_fingerprint: NotRequired[
        Annotated[str, "hash of all that a certificate depends on: one made later is found"]
    ]
    agent_source: NotRequired[
        Annotated[str, "hash of the source of the agent's package; no run goes on with another"]
    ]
    agent_distribution: Annotated[
        Distribution | None, "where the agent comes from; None for a mixture or an agent in a file"
    ]
    config: Annotated[dict[str, Any], "the resolved configuration, which runs again as it stands"]
    result: Annotated[Result | None, "None until the run ends"]
