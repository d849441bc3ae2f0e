"""What a comparison holds: the document that tables, reports and `--format json` are made of.

Plain dictionaries with types, as in `harness.results.model`; a test holds comparisons against them, key by key.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from harness.results.model import Accuracy, Certificate, Identity

SCHEMA_VERSION = 2
"""Raised when a reader of today could misread a comparison."""

Interval = tuple[float, float]
Decision = Literal["equivalent", "different", "cannot tell"]
Kind = Literal["train", "eval"]
Unit = Literal["seed", "cluster", "task"]
PairedBy = Literal["seed", "task"]
ViewKey = Literal["stock", "equal_optimizer_steps", "equal_trained_tokens"]
Measure = Literal["checkpoint", "area"]


class EstimateData(TypedDict):
    """A mean with its doubt; `harness.compare.estimates.Estimate` says more."""

    mean: float
    se: Annotated[float, "standard error"]
    df: Annotated[float, "degrees of freedom of the interval"]
    low: Annotated[float, "of the 95 % interval"]
    high: Annotated[float, "of the 95 % interval"]
    seeds: int
    clusters: Annotated[int, "clusters behind it"]
    tasks: int
    scores: int
    unit: Annotated[Unit, "what was counted as independent; `cluster` is a cluster"]
    by_seed: Annotated[tuple[float, ...], "the mean of every seed"]


class Behaviour(TypedDict):
    """What agents did in one validation, per rollout that ended well."""

    transitions_per_rollout: float | None
    prompt_tokens_per_rollout: float | None
    response_tokens_per_rollout: float | None
    rewritten: Annotated[float | None, "questions whose answer was revised"]
    helped: Annotated[float | None, "of them, better after it"]
    hurt: Annotated[float | None, "of them, worse after it"]


class Cost(TypedDict):
    """What a step took, without checkpoints and validation."""

    step_s: Annotated[float | None, "the median step"]
    shares: Annotated[dict[str, float], "of `rollout`, `update`, `weights` and `other`"]


class Means(Behaviour):
    """Figures of a run; of an arm the means over its seeds. None where something was not measured."""

    steps: float | None
    step_s: float | None
    wall_s: float | None
    agent_failed: Annotated[float | None, "share of the last validation"]
    gpu_hours: float | None
    overhead_ms_per_call: Annotated[float | None, "what the framework itself takes"]
    gateway_ms_per_call: float | None
    optimizer_steps: float | None
    trained_transitions: float | None
    trained_tokens: float | None


class Trained(TypedDict):
    """What one role was trained on."""

    transitions: Annotated[float, "of an arm the mean over its seeds"]
    tokens: float


class Shared(Means):
    """What a run and an arm both have."""

    shares: dict[str, float]
    reward_parts: Annotated[dict[str, float], "mean of every part of the reward"]
    unscored: Annotated[int, "validation rollouts without a verdict"]
    failures: Annotated[dict[str, int], "rollouts of all phases by how they ended"]
    trained_by_role: dict[str, Trained]
    parity: Annotated[str, "`reference`, `strict HASH`, `idiomatic` or `none`"]


class Figures(Shared):
    """The figures of one run."""

    run: str
    seed: int
    status: str
    reason: str
    launches: int
    accuracy_initial: float | None
    accuracy_final: float | None
    val_curve: Annotated[dict[int, float], "mean validation reward by step"]
    val_tasks: Annotated[int, "questions of the last validation"]
    by_difficulty: dict[str, Accuracy]
    by_cluster: dict[str, Accuracy]


class Arm(Shared):
    """All runs that differ in their seed only."""

    name: str
    agent: str
    agent_match: str
    seeds: list[int]
    accuracy_initial: EstimateData | None
    accuracy_final: EstimateData
    interquartile_mean: float
    interquartile_mean_interval: Interval | None
    accuracy_bounds: Annotated[Interval | None, "if all unscored were wrong, and right; None where there were none"]
    per_seed: list[Figures]


class McNemarData(TypedDict):
    """The exact test of one seed's two checkpoints."""

    seed: int
    only_first: int
    only_second: int
    p: float


class Collapses(TypedDict):
    """What the seeds say of trainings that they have not shown."""

    seen: Annotated[int, "seeds that lie the margin or more off"]
    share: Annotated[float, "the largest share of such trainings that is not excluded"]
    interval: Annotated[Interval, "of the difference, if such occur"]
    seeds_needed: Annotated[int | None, "for equivalence; None without a margin"]


class Item(TypedDict):
    """Statistics of these checkpoints alone."""

    mcnemar: Annotated[list[McNemarData], "empty for graded rewards and where arms have no common seed"]
    cluster_bootstrap: Interval | None
    clusters: Annotated[int, "clusters"]
    few_clusters: Annotated[bool, "too few clusters for the bootstrap"]


class Training(TypedDict, total=False):
    """Further evidence; empty with one seed."""

    hierarchical_bootstrap: Interval | None
    probability_of_improvement: float
    interquartile_mean_difference: float


class Pair(TypedDict):
    """An arm against the baseline."""

    arm: str
    baseline: str
    paired_by: Annotated[PairedBy, "`task` where there is no common seed"]
    identical: Annotated[bool, "the same answers in every step of every seed"]
    difference: EstimateData
    difference_bounds: Annotated[Interval | None, "if all unscored speak against the arm, and for it"]
    p: float
    p_equivalence: Annotated[float | None, "None without a margin"]
    detectable: Annotated[float | None, "the smallest difference that would have been found"]
    one_seed: bool
    collapses: Collapses
    item: Item
    training: Training
    p_holm: Annotated[float, "corrected over all pairs"]
    p_equivalence_holm: float | None
    verdict: Decision


class Learned(TypedDict):
    """One measure of one arm, beside the verdict."""

    estimate: EstimateData | None
    difference: Annotated[EstimateData | None, "to the baseline"]
    p: NotRequired[float]
    p_holm: NotRequired[Annotated[float, "corrected over all arms and measures"]]


class Learning(TypedDict):
    """Measures of the way rather than the end."""

    measures: Annotated[list[Measure], "those that could be taken"]
    arms: dict[str, dict[Measure, Learned]]


class Sampled(TypedDict):
    """What several samples of each task come to; names of measures are those of `harness.results.model.Samples`."""

    samples: Annotated[int, "of a task, of the arm with the fewest"]
    measures: list[str]
    short: Annotated[dict[str, int], "by arm, tasks and seeds with fewer scored samples"]
    arms: dict[str, dict[str, Learned]]


class AgreementStep(TypedDict):
    """Equal answers of one seed in one training step."""

    seed: int
    step: int
    draws: int
    same: Annotated[float, "share"]
    gradient: Annotated[float | None, "relative difference of the gradient's norm"]


class Agreement(TypedDict):
    """Shares of equal answers with the baseline's run of the same seed; None where there is nothing to pair."""

    draws: Annotated[int, "pairs"]
    start: Annotated[float | None, "validation before training"]
    first: Annotated[float | None, "rollouts of the first step"]
    training: Annotated[float | None, "those of all steps"]
    end: Annotated[float | None, "last validation"]
    parted: Annotated[int | None, "first training step, of any seed, in which answers or gradients differ"]
    gradient: Annotated[float | None, "largest difference of a step's gradient norm"]
    identical: Annotated[bool, "whether there was a training and nothing at all differs"]
    steps: list[AgreementStep]


class ViewArm(TypedDict):
    """An arm within a budget."""

    accuracy: float | None
    steps: Annotated[list[int], "validated steps that were looked at, by seed"]
    used: Annotated[float | None, "share of the budget; None without one"]


class View(TypedDict):
    """Accuracy of all arms within one budget."""

    key: ViewKey
    title: str
    budget: Annotated[int | None, "None as configured"]
    arms: dict[str, ViewArm]


class Exempt(TypedDict):
    """What differs with permission."""

    key: str
    why: Literal["allowed", "varied"]
    values: Annotated[dict[str, Any], "by run"]
    said: NotRequired[Annotated[list[str], "every value in words, where it is a hash of questions"]]


class Failed(TypedDict):
    """A run that is not in the comparison."""

    run: str
    arm: str
    seed: int
    status: str
    reason: str


class Identified(TypedDict):
    """What a run is identified by."""

    identity: Identity
    parity: Certificate | None


class Reference(TypedDict):
    """A figure published by others."""

    task_set: str
    label: str
    source: str
    agent_match: NotRequired[str]
    accuracy_initial: NotRequired[float]
    accuracy_final: NotRequired[float]
    accuracy_best: NotRequired[float]
    step_s: NotRequired[float]
    rollout_share: NotRequired[float]
    update_share: NotRequired[float]
    remark: NotRequired[str]
    checked: NotRequired[Annotated[bool, "whether the figure was read in its source"]]


class Comparison(TypedDict):
    """The whole of it."""

    schema_version: int
    name: str
    question: str
    task_set: str
    kind: Kind
    baseline: str
    margin: float | None
    alpha: float
    min_seeds: Annotated[int, "fewer never show equivalence"]
    collapse: Annotated[float, "what a training that no seed has shown is taken to lose"]
    power: float
    checkpoint_rule: Literal["last"]
    checkpoint: Annotated[int | None, "the step stated by the study"]
    ceiling: Annotated[bool, "whether the task set is saturated"]
    one_seed: bool
    graded: NotRequired[Annotated[bool, "what is called accuracy is the mean of a graded reward"]]
    span: NotRequired[Annotated[Interval, "between which values rewards lie; 0 and 1 where missing"]]
    arms: list[Arm]
    pairs: list[Pair]
    learning: Learning
    sampled: NotRequired[Annotated[Sampled, "where every task had several rollouts"]]
    agreement: dict[str, Agreement]
    views: list[View]
    exceptions: list[Exempt]
    remarks: list[str]
    missing: Annotated[list[str], "what a study asked for and no run stands for"]
    failed: list[Failed]
    identity: Annotated[dict[str, Identified], "by run"]


class Plan(TypedDict):
    """What an effect takes with one validation set, as `harness power` says."""

    clusters: Annotated[int, "clusters"]
    questions: int
    seeds: Annotated[int | None, "None where no number is enough"]
    runs: Annotated[int | None, "of two arms"]
    machine_s: Annotated[float | None, "by the measured time of a run"]


class Entry(TypedDict):
    """One job in `study.json`."""

    key: str
    arm: str
    seed: int
    run: Annotated[str | None, "name of its folder"]
    state: NotRequired[str]
    kind: NotRequired[Kind]
    parent: NotRequired[Annotated[str | None, "of an evaluation: key of the training"]]
    config_hash: NotRequired[str]
    pid: NotRequired[int | None]
    pid_started: NotRequired[float | None]


class StudyLaunch(TypedDict):
    """One start of a study."""

    started: Annotated[str, "UTC, ISO 8601"]
    ended: NotRequired[str]
    runs_at_once: int
    slots: list[dict[str, Any]]


class Asked(TypedDict):
    """What a study asks; empty where runs are compared that are of none."""

    question: NotRequired[str]
    baseline: NotRequired[Annotated[str | None, "an arm, or its agent"]]
    margin: NotRequired[float | None]
    checkpoint: NotRequired[int | None]
    varied: NotRequired[Annotated[list[str], "configuration keys that differ on purpose"]]
    evaluate: NotRequired[Annotated[list[str], "agents in which trained policies are evaluated"]]


class StudyState(Asked):
    """The whole of `study.json`."""

    schema_version: NotRequired[int]
    name: str
    jobs: list[Entry]
    launches: NotRequired[list[StudyLaunch]]
