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

    mean: Annotated[float, "mean of the scores"]
    se: Annotated[float, "standard error"]
    df: Annotated[float, "degrees of freedom of the interval"]
    low: Annotated[float, "lower end of the 95 % interval"]
    high: Annotated[float, "upper end of the 95 % interval"]
    seeds: Annotated[int, "number of distinct seeds"]
    clusters: Annotated[int, "number of distinct clusters, which are groups of dependent questions"]
    equal_clusters: Annotated[float, "effective number of clusters"]
    tasks: Annotated[int, "number of distinct tasks"]
    scores: Annotated[int, "number of scores"]
    unit: Annotated[Unit, "unit counted as independent"]
    by_seed: Annotated[tuple[float, ...], "mean of every seed"]


class Behaviour(TypedDict):
    """Behaviour of agents in one validation, per successful rollout."""

    transitions_per_rollout: Annotated[float | None, "calls of the model"]
    prompt_tokens_per_rollout: Annotated[float | None, "prompt tokens of all calls"]
    response_tokens_per_rollout: Annotated[float | None, "sampled tokens of all calls"]
    rewritten: Annotated[float | None, "questions with a revised answer"]
    helped: Annotated[float | None, "questions with a better answer after the revision"]
    hurt: Annotated[float | None, "questions with a worse answer after the revision"]


class ToolUse(TypedDict):
    """Use of an agent's tools in one validation, in all its rollouts; None if not counted."""

    calls_with_tools: Annotated[float | None, "calls of the model that offered tools"]
    parsed_calls: Annotated[float | None, "parsed tool calls"]
    unread_calls: Annotated[
        float | None,
        "calls of the model with a reply that looks like a tool call and was not parsed",
    ]


class Cost(TypedDict):
    """Cost of a step, without checkpoints and validation."""

    step_s: Annotated[float | None, "seconds of the median step"]
    shares: Annotated[dict[str, float], "shares of `rollout`, `update`, `weights` and `other`"]


class Means(Behaviour, ToolUse):
    """Figures of a run; for an arm, means over its seeds. None if not measured."""

    steps: Annotated[float | None, "trained steps"]
    step_s: Annotated[float | None, "seconds of the median step"]
    wall_s: Annotated[float | None, "seconds of all launches, including validation"]
    agent_failed: Annotated[float | None, "share of the last validation that the agent failed"]
    gpu_hours: Annotated[float | None, "GPU hours of all launches; None on a CPU"]
    overhead_ms_per_call: Annotated[
        float | None, "time outside calls of model and tools, including waiting for the processor"
    ]
    gateway_ms_per_call: Annotated[float | None, "time in the gateway"]
    optimizer_steps: Annotated[float | None, "optimizer steps"]
    trained_transitions: Annotated[float | None, "trained calls"]
    trained_tokens: Annotated[float | None, "trained tokens"]
    signal: Annotated[
        float | None,
        "share of groups of training rollouts with a training signal: for GRPO, different rewards",
    ]


class Signal(TypedDict):
    """Training signal."""

    signal_by_step: Annotated[
        dict[int, float], "share of groups with a training signal; empty if unknown"
    ]
    no_signal: Annotated[
        str, "why nothing could be learned, in sentences; empty if something could"
    ]


class RoleFigures(TypedDict):
    """Behaviour of one role in the last validation; `credit` is of training.

    None if not recorded.
    """

    # After a figure's description: the head of its column and its format.
    calls_per_rollout: Annotated[float | None, "calls with an answer", "calls/rollout", ",.2f"]
    response_tokens_per_rollout: Annotated[
        float | None, "response tokens of all calls", "response tokens", ",.1f"
    ]
    token_share: Annotated[
        float | None, "share of all roles' response tokens", "share of tokens %", ",.1%"
    ]
    tokens_per_reply: Annotated[float | None, "mean length of a reply", "tokens/reply", ",.1f"]
    credit: Annotated[
        float | None, "mean reward of a trained call, over all steps", "credit", ",.3f"
    ]
    reward: Annotated[
        float | None, "mean of the reward's own values for the role", "own reward", ",.3f"
    ]
    prompt_tokens_per_rollout: Annotated[
        float | None, "prompt tokens of all calls", "prompt tokens", ",.0f"
    ]
    cut_share: Annotated[
        float | None, "share of replies that reached the token limit", "cut %", ",.1%"
    ]
    failed_calls_per_rollout: Annotated[
        float | None, "calls without an answer", "failed calls", ",.2f"
    ]


class RoleFigure(TypedDict):
    """One figure of one role of an arm, over its seeds."""

    mean: Annotated[
        float | None, "mean over the seeds that have the figure (all, for rates); None if none has"
    ]
    interval: Annotated[Interval | None, "95 % interval, for new seeds; None with fewer than two"]
    difference: Annotated[
        float | None, "difference from the baseline over common seeds; None if there are none"
    ]
    difference_interval: Annotated[Interval | None, "95 % interval; None with fewer than two seeds"]


ByRole = dict[str, dict[str, dict[str, RoleFigure]]]


class Shared(Means):
    """Figures that both a run and an arm have."""

    shares: Annotated[
        dict[str, float], "shares of a step's time: `rollout`, `update`, `weights` and `other`"
    ]
    reward_parts: Annotated[dict[str, float], "mean of every part of the reward"]
    unscored: Annotated[int, "validation rollouts without a verdict"]
    failures: Annotated[dict[str, int], "rollouts of all phases by kind of failure"]
    unknown_answers: Annotated[
        int, "scored answers for which the reward does not say whether they can be executed"
    ]
    trained_by_role: Annotated[dict[str, Trained], "trained calls and tokens by role"]
    parity: Annotated[str, "`reference`, `strict HASH`, `idiomatic` or `none`"]


class Figures(Shared, Signal):
    """The figures of one run."""

    tools_unused: Annotated[
        bool,
        "whether it offered tools, and fewer than 1 % of the rollouts of every validation called "
        "them",
    ]
    run: Annotated[str, "id of the run"]
    seed: Annotated[int, "seed of the order of tasks and of sampling"]
    start: Annotated[int, "number of the initial policy, from 0, if there are several"]
    status: Annotated[str, "`finished`, `failed`, `interrupted` or `running`"]
    reason: Annotated[str, "why the run ended early; empty if it did not"]
    launches: Annotated[int, "number of launches"]
    accuracy_initial: Annotated[float | None, "accuracy before training"]
    accuracy_final: Annotated[float | None, "accuracy of the last validation, or of the evaluation"]
    val_curve: Annotated[dict[int, float], "mean validation reward by step"]
    val_tasks: Annotated[int, "questions of the last validation"]
    by_difficulty: Annotated[
        dict[str, Accuracy], "accuracy of the last validation by difficulty, if tasks have one"
    ]
    by_cluster: Annotated[dict[str, Accuracy], "accuracy of the last validation by cluster"]
    by_role: Annotated[dict[str, RoleFigures], "figures by role, in the order of first calls"]


class Arm(Shared):
    """All runs that differ in their seed only."""

    name: Annotated[str, "name of the arm"]
    agent: Annotated[str, "name of the agent"]
    agent_match: Annotated[str, "regular expression that selects the trained roles"]
    seeds: Annotated[list[int], "seeds of its runs"]
    accuracy_initial: Annotated[
        EstimateData | None, "accuracy before training; None if not validated then"
    ]
    accuracy_final: Annotated[EstimateData, "accuracy of the last validation"]
    interquartile_mean: Annotated[float, "mean of the middle half of the means by seed and cluster"]
    interquartile_mean_interval: Annotated[Interval | None, "95 % interval; None with one seed"]
    accuracy_bounds: Annotated[
        Interval | None,
        "accuracy with all unscored rollouts counted as wrong, and as right; None if all were "
        "scored",
    ]
    per_seed: Annotated[list[Figures], "figures of its runs"]


class McNemarData(TypedDict):
    """The exact test of one seed's two checkpoints."""

    seed: Annotated[int, "seed of both checkpoints"]
    only_first: Annotated[int, "questions answered correctly by the arm only"]
    only_second: Annotated[int, "questions answered correctly by the baseline only"]
    p: Annotated[float, "p value of the test for a difference"]


class Collapses(TypedDict):
    """Bounds for trainings worse than the observed ones."""

    seen: Annotated[int, "seeds that differ by at least the margin"]
    share: Annotated[float, "largest share of such trainings that the seeds do not exclude"]
    interval: Annotated[Interval, "interval of the difference if such trainings occur"]
    seeds_needed: Annotated[
        int | None,
        "seeds for 80 % power of equivalence at no true difference; None if unknown or over 200",
    ]


class Item(TypedDict):
    """Statistics of these checkpoints only."""

    mcnemar: Annotated[
        list[McNemarData],
        "McNemar's tests by seed; empty for graded rewards and for arms without a common seed",
    ]
    cluster_bootstrap: Annotated[
        Interval | None, "95 % interval of the difference; None if it cannot be computed"
    ]
    clusters: Annotated[int, "number of clusters that the bootstrap draws from"]
    few_clusters: Annotated[bool, "whether there are too few clusters for the bootstrap"]


class Training(TypedDict, total=False):
    """Further evidence; empty with one seed."""

    hierarchical_bootstrap: Annotated[
        Interval | None, "95 % interval from drawing seeds, then questions"
    ]
    probability_of_improvement: Annotated[
        float, "probability that a training of the arm ends above one of the baseline"
    ]
    interquartile_mean_difference: Annotated[
        float, "mean difference of the middle half of the seeds"
    ]


class Side(TypedDict):
    """A difference tested with one kind of group as independent."""

    low: Annotated[float, "lower end of the 95 % interval"]
    high: Annotated[float, "upper end of the 95 % interval"]
    p: Annotated[float, "p value of the test for a difference"]
    p_holm: Annotated[float, "p value corrected over all pairs"]


class Sides(TypedDict):
    """A difference by seeds alone and by clusters alone; no verdict rests on either."""

    seeds: Annotated[Side, "for other trainings on these very questions"]
    clusters: Annotated[Side, "for other questions answered by these very trainings"]


class Start(TypedDict):
    """A policy that trainings began with."""

    policy: Annotated[str, "name of the policy"]
    model: Annotated[str, "hash of its files, or its revision"]
    made_by: Annotated[str, "the recipe that made it; empty if unknown"]
    trainings: Annotated[int, "number of trainings, over all arms"]
    differences: Annotated[
        dict[str, EstimateData], "by arm, the difference from the baseline over its seeds"
    ]


class Pair(TypedDict):
    """Comparison of an arm with the baseline."""

    arm: Annotated[str, "name of the arm"]
    baseline: Annotated[str, "name of the baseline"]
    paired_by: Annotated[PairedBy, "unit of pairing; `task` if there is no common seed"]
    learned: Annotated[
        bool,
        "whether either arm had a training signal: a group with different rewards",
    ]
    identical: Annotated[
        bool, "whether all answers of all steps and seeds are the same, with a training signal"
    ]
    difference: Annotated[
        EstimateData,
        "difference of the final accuracies, arm minus baseline; `seeds` counts starts if there "
        "are several",
    ]
    difference_bounds: Annotated[
        Interval | None, "difference with all unscored rollouts counted against the arm, and for it"
    ]
    p: Annotated[float, "p value of the test for a difference"]
    p_equivalence: Annotated[
        float | None, "p value of the test for equivalence; None without a margin"
    ]
    detectable: Annotated[float | None, "smallest difference that the test would detect"]
    one_seed: Annotated[bool, "whether only one seed was compared"]
    collapses: Annotated[Collapses, "effect of unseen trainings"]
    item: Annotated[Item, "evidence on these checkpoints"]
    training: Annotated[Training, "evidence on trainings"]
    p_holm: Annotated[float, "p value corrected over all pairs"]
    p_equivalence_holm: Annotated[
        float | None, "p value corrected over all pairs; None without a margin"
    ]
    verdict: Annotated[Decision, "verdict by the corrected p values"]
    sides: NotRequired[
        Annotated[Sides, "tests by seeds alone and by clusters alone, if there are several of both"]
    ]
    starts: NotRequired[Annotated[int, "number of initial policies, if there are several"]]
    refused: NotRequired[Annotated[str, "why there is no verdict"]]


class Learned(TypedDict):
    """One secondary measure of one arm."""

    estimate: Annotated[EstimateData | None, "the measure; None if it is not available"]
    difference: Annotated[EstimateData | None, "difference from the baseline"]
    p: NotRequired[Annotated[float, "p value of the test for a difference"]]
    p_holm: NotRequired[Annotated[float, "p value corrected over all arms and measures"]]


class Learning(TypedDict):
    """Measures of the course of training, not of its end."""

    measures: Annotated[list[Measure], "available measures"]
    arms: Annotated[dict[str, dict[Measure, Learned]], "results by arm and measure"]


class Gain(TypedDict):
    """What a training gained, split into format and skill."""

    fails_initial: Annotated[EstimateData, "share of answers that fail before training"]
    fails_final: Annotated[EstimateData, "share of answers that fail in the last validation"]
    right_initial: Annotated[
        float | None,
        "share of executed answers that are right before training; None if all answers fail",
    ]
    right_final: Annotated[
        float | None,
        "share of executed answers that are right in the last validation; None if all answers fail",
    ]
    gain: Annotated[EstimateData, "gain in accuracy, over questions scored in both validations"]
    by_format: Annotated[
        EstimateData,
        "the part from fewer failures: their decrease times the mean of `right_initial` and "
        "`right_final`",
    ]
    by_skill: Annotated[EstimateData, "the rest of the gain"]


class Sampled(TypedDict):
    """Measures from several samples per task; named as in `harness.runs.schema.Samples`."""

    samples: Annotated[int, "samples per task of the arm with the fewest"]
    measures: Annotated[list[str], "available measures, in order"]
    short: Annotated[dict[str, int], "by arm, number of tasks (per seed) with fewer scored samples"]
    left_out: Annotated[
        dict[str, dict[str, int]],
        "by arm and measure, number of tasks (per seed) with too few scored samples for the measure",
    ]
    arms: Annotated[dict[str, dict[str, Learned]], "results by arm and measure"]


class AgreementStep(TypedDict):
    """Equal answers of one seed in one training step."""

    seed: Annotated[int, "seed of both runs"]
    step: Annotated[int, "training step"]
    draws: Annotated[int, "number of paired answers"]
    same: Annotated[float, "share of equal answers"]
    gradient: Annotated[float | None, "relative difference of the gradient norms"]


class Agreement(TypedDict):
    """Shares of answers equal to the baseline's run of the same seed; None without pairs."""

    draws: Annotated[int, "number of paired answers"]
    start: Annotated[float | None, "share in the validation before training"]
    first: Annotated[float | None, "share in the first training step"]
    training: Annotated[float | None, "share in all training steps"]
    end: Annotated[float | None, "share in the last validation"]
    parted: Annotated[int | None, "first divergent step of any seed"]
    gradient: Annotated[float | None, "largest relative difference of a step's gradient norms"]
    identical: Annotated[bool, "whether there was a training and nothing differs"]
    steps: Annotated[list[AgreementStep], "every step of every seed"]


class ViewArm(TypedDict):
    """An arm within a budget."""

    accuracy: Annotated[
        float | None, "mean over its seeds; None if no run was validated within the budget"
    ]
    difference: Annotated[
        EstimateData | None,
        "difference from the baseline; None for the baseline, and if a run was not validated there",
    ]
    steps: Annotated[list[int], "the validated steps that count, by seed"]
    used: Annotated[float | None, "used share of the budget; None without a budget"]


class View(TypedDict):
    """Accuracy of all arms within one budget."""

    key: Annotated[ViewKey, "kind of budget"]
    title: Annotated[str, "kind of budget in words"]
    budget: Annotated[int | None, "the budget; None for the runs as configured"]
    arms: Annotated[dict[str, ViewArm], "results by arm"]


class Used(TypedDict):
    """Policies of one trained arm in one agent."""

    accuracy: Annotated[EstimateData, "accuracy of the last validation"]
    difference: Annotated[
        EstimateData | None,
        "difference from the policies trained in the same agent; None for these, and without a "
        "common seed",
    ]
    seeds: Annotated[int, "number of seeds of the difference"]


class Exempt(TypedDict):
    """A permitted difference, or what was not stated before there were results."""

    key: Annotated[str, "key of the identity, dotted; or `margin`, `baseline` or `checkpoint`"]
    why: Annotated[
        Literal["allowed", "varied", "given", "changed"],
        "`allowed` by an option, `varied` by the study; `given` as an option although the study "
        "declares another value, or `changed` in the study\x27s file after runs had finished",
    ]
    values: Annotated[
        dict[str, Any], "values by run; or of `study` and `comparison`, or `first` and `now`"
    ]
    texts: NotRequired[Annotated[list[str], "values in words, for hashes of questions"]]


class Failed(TypedDict):
    """A run that is excluded from the comparison."""

    run: Annotated[str, "id of the run"]
    arm: Annotated[str, "name of its arm"]
    seed: Annotated[int, "seed of the run"]
    status: Annotated[str, "status of the run"]
    reason: Annotated[str, "why it ended early, in one line"]


class Identified(TypedDict):
    """The identity of a run."""

    identity: Annotated[Identity, "settings and data that compared runs must share"]
    parity: Annotated[Certificate | None, "the agent's certificate; None if it has none"]


class Comparison(TypedDict):
    """The whole comparison."""

    schema_version: Annotated[int, "version of this document's schema"]
    name: Annotated[str, "name of the study or the comparison"]
    question: Annotated[str, "the study's question; may be empty"]
    task_set: Annotated[str, "task set of all runs"]
    kind: Annotated[Kind, "`train` for trainings, `eval` for evaluations"]
    baseline: Annotated[str, "name of the arm that the others are compared with"]
    margin: Annotated[float | None, "margin of equivalence; None if not declared"]
    margin_source: NotRequired[
        Annotated[
            Literal["given", "changed"],
            "`given` to the comparison, or `changed` after runs had finished; missing if it was "
            "declared beforehand or there is none",
        ]
    ]
    alpha: Annotated[float, "significance level of the tests"]
    min_seeds: Annotated[int, "fewest seeds that can show equivalence"]
    collapse: Annotated[float, "assumed loss of an unseen collapse"]
    power: Annotated[float, "power of `detectable`"]
    checkpoint_rule: Annotated[Literal["last"], "which validation is compared: the last one"]
    checkpoint: Annotated[int | None, "step of the secondary measure, if the study declares one"]
    ceiling: Annotated[bool, "whether the task set is saturated"]
    times_compare: Annotated[
        bool, "whether all runs had machines of one kind, or the same share of one"
    ]
    one_seed: Annotated[bool, "whether every arm has only one run"]
    graded: NotRequired[Annotated[bool, "whether accuracies are means of a graded reward"]]
    span: NotRequired[Annotated[Interval, "lowest and highest reward; 0 and 1 if missing"]]
    arms: Annotated[list[Arm], "in order of first appearance"]
    pairs: Annotated[list[Pair], "comparisons of every other arm with the baseline"]
    starts: NotRequired[Annotated[list[Start], "initial policies, if several or from a recipe"]]
    learning: Annotated[Learning, "speed of learning"]
    sampled: NotRequired[
        Annotated[Sampled, "measures from several samples, if every task had several rollouts"]
    ]
    gains: NotRequired[Annotated[dict[str, Gain], "gains by arm, if answers fail"]]
    transfer: NotRequired[
        Annotated[
            dict[str, dict[str, Used]],
            "for evaluations, by the arm that trained a policy and the agent that used it",
        ]
    ]
    agreement: Annotated[dict[str, Agreement], "equal answers with the baseline, by arm"]
    by_role: Annotated[ByRole, "figures by arm, role and key of `RoleFigures`"]
    views: Annotated[list[View], "the same runs under equal budgets"]
    exceptions: Annotated[list[Exempt], "what differs although it must not, or on purpose"]
    remarks: Annotated[list[str], "what a reader must know, a sentence each"]
    missing: Annotated[
        list[str], "planned runs that do not exist, or of an earlier policy or setting"
    ]
    failed: Annotated[list[Failed], "runs that ended early"]
    identity: Annotated[dict[str, Identified], "by run"]
