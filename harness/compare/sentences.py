"""Notes on a comparison: how to read its tables, and limits of their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.compare.keys import Comparison, EstimateData, Pair
from harness.compare.numbers import points
from harness.compare.pairs import any_one_seed, counted_in
from harness.compare.verdicts import conclusions, counted, few_clusters
from harness.util.formatting import measured

MARGINS = {
    None: "the margin stated beforehand",
    "given": "the margin given to this comparison",
    "changed": "the margin that the study states now",
}
"""A margin in words, by the comparison's `margin_source`."""


def sentences(comparison: Comparison) -> list[str]:
    """Return the notes on how to read the tables, and on limits of their evidence."""
    notes = _notes_on_pairs(comparison) if comparison["pairs"] else _notes_on_one_arm(comparison)
    notes += comparison["remarks"]
    for text in comparison["missing"]:
        notes.append(f"Not in the comparison: {text}.")
    return notes


def _notes_on_one_arm(comparison: Comparison) -> list[str]:
    notes = _no_signal(comparison)
    notes.append(
        f"Only one arm, so nothing is compared. {_checkpoint(comparison)}Intervals: 95 %. "
        "What two runs differ in: `harness runs diff A B`."
    )
    if comparison["one_seed"] and comparison["kind"] == "train":
        notes.append("One seed: another training may reach something else.")
    return notes + _ceiling(comparison)


def _notes_on_pairs(comparison: Comparison) -> list[str]:
    # The verdicts come first, then what they mean, then what limits them: readers may stop early.
    notes = [
        f"Baseline: {comparison['baseline']}. {_checkpoint(comparison)}Intervals: 95 %. "
        f"p values are corrected over all comparisons (Holm); "
        f"different means p < {comparison['alpha']:g}.",
        *conclusions(comparison),
        *_no_signal(comparison),
        _meaning_of_equivalent(comparison),
        *_stated_late(comparison),
        *_in_common(comparison),
        *_collapses(comparison),
        *_few_clusters(comparison),
        *_starts(comparison),
    ]
    if comparison.get("graded"):
        low, high = comparison.get("span", (0.0, 1.0))
        notes.append(
            f"Rewards are graded, from {low:g} to {high:g}; a point is a hundredth of mean reward."
        )
    notes += _ceiling(comparison) + _floor(comparison)
    if comparison["one_seed"]:
        notes.append(
            "One seed an arm: this compares these checkpoints. "
            "It says nothing about what another training would reach."
        )
    elif any_one_seed(comparison):
        notes.append(
            "Where one seed is common, or none, the comparison is of these checkpoints alone."
        )
    return notes


def _meaning_of_equivalent(comparison: Comparison) -> str:
    margin = comparison["margin"]
    if margin is None:
        return "No margin was stated, so nothing can be called equivalent."
    return (
        f"Equivalent means: in {comparison['min_seeds']} {counted_in(comparison)} or more "
        "the difference is shown to lie "
        f"within ±{100 * margin:g} points, {MARGINS[comparison.get('margin_source')]} "
        f"(p < {comparison['alpha']:g}), even if a training "
        f"that no seed has shown collapses by {100 * comparison['collapse']:g} points."
    )


def _stated_late(comparison: Comparison) -> list[str]:
    """Return notes on a margin, baseline or checkpoint that was not stated before the results."""
    notes = []
    for exempt in comparison["exceptions"]:
        values = ", ".join(exempt.get("texts", []))
        if exempt["why"] == "given":
            notes.append(f"The margin is not the one that the study states: {values}.")
        elif exempt["why"] == "changed":
            notes.append(
                f"The study's {exempt['key']} was changed after runs had finished: {values}."
            )
    return notes


def _checkpoint(comparison: Comparison) -> str:
    return "Checkpoint: the last of every run. " if comparison["kind"] == "train" else ""


def _no_signal(comparison: Comparison) -> list[str]:
    """Return a note on trainings without a signal, and the reason."""
    notes = []
    for arm in comparison["arms"]:
        reasons: dict[int, str] = {}
        for run in arm["per_seed"]:
            if run["no_signal"]:
                reasons[run["seed"]] = run["no_signal"]
        if not reasons:
            continue
        which = ""
        if len(reasons) < len(arm["seeds"]):
            which = f", {_seeds(list(reasons), 'seed')}"
        notes.append(
            f"Nothing could be learned in {arm['name']}{which}: "
            f"no task gave a gradient. {_reasons(reasons)}"
        )
    return notes


def _seeds(seeds: Sequence[int], word: str) -> str:
    """Return `seed 1` or `seeds 1, 2`."""
    plural = "s" if len(seeds) > 1 else ""
    return f"{word}{plural} {', '.join(map(str, seeds))}"


def _reasons(by_seed: Mapping[int, str]) -> str:
    """Return why trainings had nothing to learn from, by seed where not all had the same reason."""
    seeds: dict[str, list[int]] = {}
    for seed, reason in by_seed.items():
        seeds.setdefault(reason, []).append(seed)
    if len(seeds) == 1:
        return next(iter(seeds))
    sentences_by_reason = []
    for reason, seeds_of_reason in seeds.items():
        sentences_by_reason.append(f"{_seeds(seeds_of_reason, 'Seed')}: {reason}")
    return " ".join(sentences_by_reason)


def _in_common(comparison: Comparison) -> list[str]:
    """Return a note on the number of common seeds, if one arm has more."""
    seeds = {arm["name"]: len(arm["seeds"]) for arm in comparison["arms"]}
    fewer = []
    for pair in comparison["pairs"]:
        # With several starts, `seeds` counts starts, which have a note of their own.
        if pair["paired_by"] != "seed" or "starts" in pair:
            continue
        common = pair["difference"]["seeds"]
        if common < max(seeds[pair["arm"]], seeds[comparison["baseline"]]):
            fewer.append(f"{pair['arm']} {common}")
    if not fewer:
        return []
    return [f"Differences are those of the seeds that both arms have: {', '.join(fewer)}."]


def _collapses(comparison: Comparison) -> list[str]:
    """Return a note on possible trainings worse than the observed ones."""
    identical: list[Pair] = []
    others: list[Pair] = []
    for pair in comparison["pairs"]:
        # One seed shows no share of trainings at all.
        if pair["learned"] and not pair["one_seed"]:
            (identical if pair["identical"] else others).append(pair)
    notes = []
    if identical:
        # Arms with fewer seeds exclude less. One figure for all of them is that of the fewest.
        names: list[str] = []
        share = 0.0
        for pair in identical:
            names.append(pair["arm"])
            share = max(share, pair["collapses"]["share"])
        notes.append(
            f"Up to {points(share)} % of trainings with other seeds "
            "may still differ from the baseline's, although these "
            f"are identical (95 %): {', '.join(names)}."
        )
    if others:
        far = comparison["margin"] or comparison["collapse"]
        shares = []
        for pair in others:
            collapses = pair["collapses"]
            seen = f"{collapses['seen']} of {pair['difference']['seeds']} {counted(pair)} seen"
            shares.append(f"{pair['arm']} {points(collapses['share'])} % ({seen})")
        notes.append(
            f"Share of trainings that may lie {100 * far:g} points or more off the baseline's, "
            "the largest that the seeds "
            f"do not exclude (95 %, each): {'; '.join(shares)}. "
            "Intervals of differences cover only those that were seen."
        )
    return notes


def _few_clusters(comparison: Comparison) -> list[str]:
    """Return a note if clusters limit the power, whatever the number of seeds."""
    # Pairs differ in the questions that both arms have scored; the least evidence is reported.
    fewest: EstimateData | None = None
    for pair in comparison["pairs"]:
        difference = pair["difference"]
        if few_clusters(pair) and (
            fewest is None or difference["equal_clusters"] < fewest["equal_clusters"]
        ):
            fewest = difference
    if fewest is None:
        return []
    return [
        f"The questions lie in {fewest['clusters']} clusters. Their effective number is "
        f"{fewest['equal_clusters']:.1f}: they carry the information of about "
        f"{fewest['equal_clusters']:.1f} equally large clusters. Verdicts must hold for other "
        "clusters too, so only large differences can be shown, however many seeds there are."
    ]


def _starts(comparison: Comparison) -> list[str]:
    """Return a note that verdicts count starts, if there are several."""
    most = 0
    for pair in comparison["pairs"]:
        most = max(most, pair.get("starts", 0))
    if not most:
        return []
    return [
        f"Trainings began with {most} starts, "
        "which verdicts and their intervals count as what is independent, "
        "since all seeds of a start share it. "
        "Other intervals are for other seeds from these starts."
    ]


def _ceiling(comparison: Comparison) -> list[str]:
    """Return a note if the task set is too easy to distinguish the arms."""
    if not comparison["ceiling"]:
        return []
    # Arms that all end near the highest reward can only differ by what is left of the scale, so
    # "no difference" says little there.
    graded, highest = comparison.get("graded", False), comparison.get("span", (0.0, 1.0))[1]
    room = highest - min(arm["accuracy_final"]["mean"] for arm in comparison["arms"])
    text = (
        f"The task set is saturated: every arm ends within {points(room)} points of "
        f"{f'{highest:g}' if graded else '100 %'}, "
        f"so final {measured(graded)} cannot separate them by more than that."
    )
    if comparison["pairs"] and comparison["margin"] is not None and comparison["margin"] >= room:
        text += (
            f" Equivalence within ±{100 * comparison['margin']:g} points is then almost certain; "
            "a harder set may show a difference."
        )
    return [text]


def _floor(comparison: Comparison) -> list[str]:
    """Return a note if a margin covers even the loss of everything that the baseline can do."""
    margin = comparison["margin"]
    if margin is None:
        return []
    lowest = comparison.get("span", (0.0, 1.0))[0]
    for arm in comparison["arms"]:
        reached = arm["accuracy_final"]["mean"]
        if arm["name"] == comparison["baseline"] and reached - lowest <= margin:
            graded = comparison.get("graded", False)
            return [
                f"The margin of ±{points(margin)} points is too wide: {arm['name']} ends within it "
                f"of {f'{lowest:g}' if graded else '0 %'}, so an arm that loses everything would "
                "be equivalent. State a smaller margin."
            ]
    return []
