"""The keys of a comparison, the document behind tables, reports and `--format json`.

Typed plain dictionaries, as in `harness.runs.schema`; a test checks comparisons against them,
key by key. `docs/comparisons.md` is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from harness.runs.rows import Trained
from harness.runs.schema import Accuracy, Certificate, Identity

SCHEMA_VERSION = 3
"""Increased when current code could misread a comparison."""

Interval = tuple[float, float]
Decision = Literal["equivalent", "different", "identical", "cannot tell", "refused"]
Kind = Literal["train", "eval"]
Unit = Literal["seed", "cluster", "task"]
PairedBy = Literal["seed", "task"]
ViewKey = Literal["stock", "equal_optimizer_steps", "equal_trained_tokens"]
Measure = Literal["checkpoint", "area"]


class EstimateData(TypedDict):
    """A mean with its uncertainty; `harness.compare.estimates.Estimate` has details."""

    mean: Annotated[float, "of the scores"]
    se: Annotated[float, "standard error"]
    df: Annotated[float, "degrees of freedom of the interval"]
    low: Annotated[float, "of the 95 % interval"]
    high: Annotated[float, "of the 95 % interval"]
    seeds: Annotated[int, "different ones behind it"]
    clusters: Annotated[int, "different groups of alike questions behind it"]
    equal_clusters: Annotated[float, "effective number of clusters"]
    tasks: Annotated[int, "different ones behind it"]
    scores: Annotated[int, "rows behind it"]
    unit: Annotated[Unit, "what was counted as independent"]
    by_seed: Annotated[tuple[float, ...], "the mean of every seed"]


class Behaviour(TypedDict):
    """Behaviour of agents in one validation, per successful rollout."""

    transitions_per_rollout: Annotated[float | None, "calls of the model"]
    prompt_tokens_per_rollout: Annotated[float | None, "of all its calls"]
    response_tokens_per_rollout: Annotated[float | None, "sampled in all its calls"]
    rewritten: Annotated[float | None, "questions whose answer was revised"]
    helped: Annotated[float | None, "of them, better after it"]
    hurt: Annotated[float | None, "of them, worse after it"]


class ToolUse(TypedDict):
    """Use of an agent's tools in one validation, in all its rollouts; None if not counted."""

    calls_with_tools: Annotated[float | None, "calls of the model whose request offered tools"]
    parsed_calls: Annotated[float | None, "parsed tool calls"]
    unread_calls: Annotated[
        float | None, "calls of the model whose reply looks like a tool call that was not read"
    ]


class Cost(TypedDict):
    """Cost of a step, without checkpoints and validation."""

    step_s: Annotated[float | None, "the median step"]
    shares: Annotated[dict[str, float], "of `rollout`, `update`, `weights` and `other`"]


class Means(Behaviour, ToolUse):
    """Figures of a run; for an arm, means over its seeds. None if not measured."""

    steps: Annotated[float | None, "training steps made"]
    step_s: Annotated[float | None, "seconds of the median step"]
    wall_s: Annotated[float | None, "seconds of all launches, of validation too"]
    agent_failed: Annotated[float | None, "share of the last validation"]
    gpu_hours: Annotated[float | None, "of all GPUs and launches; None on a CPU"]
    overhead_ms_per_call: Annotated[
        float | None, "outside calls of model and tools, waiting for the processor included"
    ]
    gateway_ms_per_call: Annotated[float | None, "what the gateway takes"]
    optimizer_steps: Annotated[float | None, "updates of the weights"]
    trained_transitions: Annotated[float | None, "calls in all updates"]
    trained_tokens: Annotated[float | None, "sampled tokens in all updates"]
    signal: Annotated[
        float | None, "share of groups of training rollouts that teach: GRPO's rewards differ"
    ]


class Signal(TypedDict):
    """Training signal."""

    signal_by_step: Annotated[
        dict[int, float], "share of groups that teach; empty where that is not known"
    ]
    no_signal: Annotated[
        str, "why nothing could be learned, as sentences; empty where something could"
    ]


class RoleFigures(TypedDict):
    """Behaviour of one role in the last validation; `credit` is of training.

    None if not recorded.
    """

    # After a figure's description: the head of its column and its format.
    calls_per_rollout: Annotated[float | None, "calls with an answer", "calls/rollout", ",.2f"]
    response_tokens_per_rollout: Annotated[
        float | None, "of all its replies", "response tokens", ",.1f"
    ]
    token_share: Annotated[
        float | None, "of all roles' response tokens", "share of tokens %", ",.1%"
    ]
    tokens_per_reply: Annotated[float | None, "the mean length of a reply", "tokens/reply", ",.1f"]
    credit: Annotated[
        float | None, "what a trained call was paid, the mean of all steps", "credit", ",.3f"
    ]
    reward: Annotated[
        float | None, "mean of the reward's own values of the role", "own reward", ",.3f"
    ]
    prompt_tokens_per_rollout: Annotated[float | None, "of all its calls", "prompt tokens", ",.0f"]
    cut_share: Annotated[
        float | None, "of its replies, that ended at the token limit", "cut %", ",.1%"
    ]
    failed_calls_per_rollout: Annotated[
        float | None, "calls without an answer", "failed calls", ",.2f"
    ]


class RoleFigure(TypedDict):
    """One figure of one role of an arm, over its seeds."""

    mean: Annotated[float | None, "over the seeds that have it: all, of rates; None where none has"]
    interval: Annotated[Interval | None, "95 %, for new seeds; None of fewer than two"]
    difference: Annotated[
        float | None, "to the baseline's of the same seeds; None where there are none"
    ]
    difference_interval: Annotated[Interval | None, "95 %; None of fewer than two seeds"]


ByRole = dict[str, dict[str, dict[str, RoleFigure]]]


class Shared(Means):
    """Figures that both a run and an arm have."""

    shares: Annotated[
        dict[str, float], "of a step's time: `rollout`, `update`, `weights` and `other`"
    ]
    reward_parts: Annotated[dict[str, float], "mean of every part of the reward"]
    unscored: Annotated[int, "validation rollouts without a verdict"]
    failures: Annotated[dict[str, int], "rollouts of all phases by how they ended"]
    trained_by_role: Annotated[dict[str, Trained], "trained calls and tokens by role"]
    parity: Annotated[str, "`reference`, `strict HASH`, `idiomatic` or `none`"]


class Figures(Shared, Signal):
    """The figures of one run."""

    tools_unused: Annotated[
        bool, "whether it offered tools and no validation had calls in 1 % of rollouts"
    ]
    run: Annotated[str, "its id"]
    seed: Annotated[int, "of the order of tasks and of sampling"]
    start: Annotated[int, "which of several policies it began with, from 0"]
    status: Annotated[str, "`finished`, `failed`, `interrupted` or `running`"]
    reason: Annotated[str, "why it ended early; empty where it did not"]
    launches: Annotated[int, "1 plus resumptions"]
    accuracy_initial: Annotated[float | None, "of the validation before training"]
    accuracy_final: Annotated[float | None, "of the last validation, or of the evaluation"]
    val_curve: Annotated[dict[int, float], "mean validation reward by step"]
    val_tasks: Annotated[int, "questions of the last validation"]
    by_difficulty: Annotated[
        dict[str, Accuracy], "of the last validation, where tasks have difficulties"
    ]
    by_cluster: Annotated[
        dict[str, Accuracy], "of the last validation, by group of alike questions"
    ]
    by_role: Annotated[dict[str, RoleFigures], "by role, in the order of first calls"]


class Arm(Shared):
    """All runs that differ in their seed only."""

    name: Annotated[str, "distinguishing name"]
    agent: Annotated[str, "name of the agent"]
    agent_match: Annotated[str, "pattern of the roles that are trained"]
    seeds: Annotated[list[int], "of its runs"]
    accuracy_initial: Annotated[
        EstimateData | None, "before training; None where that was not validated"
    ]
    accuracy_final: Annotated[EstimateData, "of the last validation"]
    interquartile_mean: Annotated[float, "of the middle half of the means by seed and cluster"]
    interquartile_mean_interval: Annotated[Interval | None, "95 %; None with one seed"]
    accuracy_bounds: Annotated[
        Interval | None, "bounds: all unscored wrong, all right; None where there were none"
    ]
    per_seed: Annotated[list[Figures], "its runs"]


class McNemarData(TypedDict):
    """The exact test of one seed's two checkpoints."""

    seed: Annotated[int, "of both checkpoints"]
    only_first: Annotated[int, "questions that only the arm's answers"]
    only_second: Annotated[int, "questions that only the baseline's answers"]
    p: Annotated[float, "of the test for a difference"]


class Collapses(TypedDict):
    """Bounds for trainings worse than the observed ones."""

    seen: Annotated[int, "seeds that differ by at least the margin"]
    share: Annotated[float, "the largest share of such trainings that is not excluded"]
    interval: Annotated[Interval, "of the difference, if such occur"]
    seeds_needed: Annotated[
        int | None,
        "for 80 % power of equivalence at no true difference; None if unknown or over 200",
    ]


class Item(TypedDict):
    """Statistics of these checkpoints only."""

    mcnemar: Annotated[
        list[McNemarData], "empty for graded rewards and where arms have no common seed"
    ]
    cluster_bootstrap: Annotated[
        Interval | None, "95 % interval of the difference; None where it cannot be drawn"
    ]
    clusters: Annotated[int, "groups of alike questions that it draws from"]
    few_clusters: Annotated[bool, "too few clusters for the bootstrap"]


class Training(TypedDict, total=False):
    """Further evidence; empty with one seed."""

    hierarchical_bootstrap: Annotated[
        Interval | None, "95 % interval, drawing seeds, then questions"
    ]
    probability_of_improvement: Annotated[
        float, "that a training of the arm ends above one of the baseline"
    ]
    interquartile_mean_difference: Annotated[float, "of the middle half of the seeds"]


class Side(TypedDict):
    """A difference tested with one kind of group as independent."""

    low: Annotated[float, "of the 95 % interval"]
    high: Annotated[float, "of the 95 % interval"]
    p: Annotated[float, "of the test for a difference"]
    p_holm: Annotated[float, "corrected over all pairs"]


class Sides(TypedDict):
    """A difference by seeds alone and by clusters alone; no verdict rests on either."""

    seeds: Annotated[Side, "for other trainings on these very questions"]
    clusters: Annotated[Side, "for other questions answered by these very trainings"]


class Start(TypedDict):
    """A policy that trainings began with."""

    policy: Annotated[str, "its name"]
    model: Annotated[str, "hash of its files, or its revision"]
    made_by: Annotated[str, "the recipe that made it; empty where none is known"]
    trainings: Annotated[int, "of all arms"]
    differences: Annotated[dict[str, EstimateData], "by arm, to the baseline, over its seeds"]


class Pair(TypedDict):
    """Comparison of an arm with the baseline."""

    arm: Annotated[str, "its name"]
    baseline: Annotated[str, "name of the arm it is compared with"]
    paired_by: Annotated[PairedBy, "`task` where there is no common seed"]
    learned: Annotated[
        bool,
        "whether there was anything to learn from: a group with different rewards, in either arm",
    ]
    identical: Annotated[
        bool, "the same answers in every step of every seed, and something to learn from"
    ]
    difference: Annotated[
        EstimateData,
        "of the final accuracies, arm less baseline; `seeds` counts starts where they are several",
    ]
    difference_bounds: Annotated[
        Interval | None, "if all unscored speak against the arm, and for it"
    ]
    p: Annotated[float, "of the test for a difference"]
    p_equivalence: Annotated[float | None, "of the test for equivalence; None without a margin"]
    detectable: Annotated[float | None, "the smallest difference that would have been found"]
    one_seed: Annotated[bool, "whether only one seed was compared"]
    collapses: Annotated[Collapses, "effect of unseen trainings"]
    item: Annotated[Item, "evidence on these checkpoints"]
    training: Annotated[Training, "evidence on trainings"]
    p_holm: Annotated[float, "corrected over all pairs"]
    p_equivalence_holm: Annotated[float | None, "corrected over all pairs; None without a margin"]
    verdict: Annotated[Decision, "what the corrected p values allow to say"]
    sides: NotRequired[Annotated[Sides, "where there are several seeds and clusters"]]
    starts: NotRequired[
        Annotated[int, "policies that the trainings began with, where they are several"]
    ]
    refused: NotRequired[Annotated[str, "why there is no verdict, where it is refused"]]


class Learned(TypedDict):
    """One secondary measure of one arm."""

    estimate: Annotated[EstimateData | None, "the measure; None where it could not be taken"]
    difference: Annotated[EstimateData | None, "to the baseline"]
    p: NotRequired[Annotated[float, "of the test for a difference"]]
    p_holm: NotRequired[Annotated[float, "corrected over all arms and measures"]]


class Learning(TypedDict):
    """Measures of the course of training, not of its end."""

    measures: Annotated[list[Measure], "those that could be taken"]
    arms: Annotated[dict[str, dict[Measure, Learned]], "by arm and measure"]


class Gain(TypedDict):
    """What a training gained, split into format and skill."""

    fails_initial: Annotated[EstimateData, "share of answers that fail, before training"]
    fails_final: Annotated[EstimateData, "the same in the last validation"]
    right_initial: Annotated[
        float | None, "share of executed answers that are right, before; None where all fail"
    ]
    right_final: Annotated[float | None, "the same in the last validation"]
    gain: Annotated[EstimateData, "of accuracy, by questions scored in both"]
    by_format: Annotated[
        EstimateData, "the drop in failures, times the mean of both shares of right ones"
    ]
    by_skill: Annotated[EstimateData, "the rest of the gain"]


class Sampled(TypedDict):
    """Measures from several samples per task; named as in `harness.runs.schema.Samples`."""

    samples: Annotated[int, "of a task, of the arm with the fewest"]
    measures: Annotated[list[str], "those taken, in order"]
    short: Annotated[dict[str, int], "by arm, tasks and seeds with fewer scored samples"]
    left_out: Annotated[
        dict[str, dict[str, int]],
        "by arm and measure, tasks and seeds with fewer scored samples than the measure takes",
    ]
    arms: Annotated[dict[str, dict[str, Learned]], "by arm and measure"]


class AgreementStep(TypedDict):
    """Equal answers of one seed in one training step."""

    seed: Annotated[int, "of both runs"]
    step: Annotated[int, "of training"]
    draws: Annotated[int, "answers that were paired"]
    same: Annotated[float, "share"]
    gradient: Annotated[float | None, "relative difference of the gradient's norm"]


class Agreement(TypedDict):
    """Shares of answers equal to the baseline's run of the same seed; None without pairs."""

    draws: Annotated[int, "pairs"]
    start: Annotated[float | None, "validation before training"]
    first: Annotated[float | None, "rollouts of the first step"]
    training: Annotated[float | None, "those of all steps"]
    end: Annotated[float | None, "last validation"]
    parted: Annotated[int | None, "first divergent step of any seed"]
    gradient: Annotated[float | None, "largest difference of a step's gradient norm"]
    identical: Annotated[bool, "whether there was a training and nothing at all differs"]
    steps: Annotated[list[AgreementStep], "every step of every seed"]


class ViewArm(TypedDict):
    """An arm within a budget."""

    accuracy: Annotated[
        float | None, "mean over its seeds; None where none was validated within the budget"
    ]
    difference: Annotated[
        EstimateData | None, "to the baseline; None for it, and where a run was not validated there"
    ]
    steps: Annotated[list[int], "validated steps that were looked at, by seed"]
    used: Annotated[float | None, "share of the budget; None without one"]


class View(TypedDict):
    """Accuracy of all arms within one budget."""

    key: Annotated[ViewKey, "the kind of budget"]
    title: Annotated[str, "the same in words"]
    budget: Annotated[int | None, "None as configured"]
    arms: Annotated[dict[str, ViewArm], "by name"]


class Used(TypedDict):
    """Policies of one trained arm in one agent."""

    accuracy: Annotated[EstimateData, "on the last validation"]
    difference: Annotated[
        EstimateData | None,
        "to the policies trained in the same agent; None for these, and without a common seed",
    ]
    seeds: Annotated[int, "of the difference"]


class Exempt(TypedDict):
    """A permitted difference."""

    key: Annotated[str, "of the identity, dotted"]
    why: Annotated[
        Literal["allowed", "varied"], "by an option of the command, or by the study itself"
    ]
    values: Annotated[dict[str, Any], "by run"]
    said: NotRequired[Annotated[list[str], "values in words, for hashes of questions"]]


class Failed(TypedDict):
    """A run that is excluded from the comparison."""

    run: Annotated[str, "its id"]
    arm: Annotated[str, "its arm"]
    seed: Annotated[int, "its seed"]
    status: Annotated[str, "how it ended"]
    reason: Annotated[str, "why, in a line"]


class Identified(TypedDict):
    """The identity of a run."""

    identity: Annotated[Identity, "what must be equal to compare it"]
    parity: Annotated[Certificate | None, "the agent's certificate; None where it has none"]


class Comparison(TypedDict):
    """The whole comparison."""

    schema_version: Annotated[int, "of this document"]
    name: Annotated[str, "of the study or the comparison"]
    question: Annotated[str, "the study's question; may be empty"]
    task_set: Annotated[str, "shared by all runs"]
    kind: Annotated[Kind, "trainings or evaluations"]
    baseline: Annotated[str, "name of the arm that others are compared with"]
    margin: Annotated[
        float | None, "differences smaller than this do not matter; None where none was stated"
    ]
    alpha: Annotated[float, "level of the tests"]
    min_seeds: Annotated[int, "fewer never show equivalence"]
    collapse: Annotated[float, "assumed loss of an unseen collapse"]
    power: Annotated[float, "with which a detectable difference would be found"]
    checkpoint_rule: Annotated[Literal["last"], "which validation is compared: the last"]
    checkpoint: Annotated[int | None, "the step stated by the study"]
    ceiling: Annotated[bool, "whether the task set is saturated"]
    times_compare: Annotated[bool, "whether all runs had a machine, or the same share of one"]
    one_seed: Annotated[bool, "whether every arm has only one run"]
    graded: NotRequired[Annotated[bool, "what is called accuracy is the mean of a graded reward"]]
    span: NotRequired[
        Annotated[Interval, "between which values rewards lie; 0 and 1 where missing"]
    ]
    arms: Annotated[list[Arm], "in order of first appearance"]
    pairs: Annotated[list[Pair], "every arm but the baseline"]
    starts: NotRequired[Annotated[list[Start], "initial policies, if several or from a recipe"]]
    learning: Annotated[Learning, "speed of learning"]
    sampled: NotRequired[Annotated[Sampled, "where every task had several rollouts"]]
    gains: NotRequired[Annotated[dict[str, Gain], "by arm, where answers fail"]]
    transfer: NotRequired[
        Annotated[dict[str, dict[str, Used]], "by trained arm and agent, of evaluations"]
    ]
    agreement: Annotated[dict[str, Agreement], "by arm, with the baseline"]
    by_role: Annotated[ByRole, "by arm, role and key of `RoleFigures`"]
    views: Annotated[list[View], "the same runs under equal budgets"]
    exceptions: Annotated[list[Exempt], "what differs although it must not, or on purpose"]
    remarks: Annotated[list[str], "what a reader must know, a sentence each"]
    missing: Annotated[list[str], "planned runs that do not exist or measured an earlier policy"]
    failed: Annotated[list[Failed], "runs that ended early"]
    identity: Annotated[dict[str, Identified], "by run"]
