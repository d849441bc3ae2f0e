"""What a comparison allows to say: the one place where words follow from verdicts.

Tables, sentences and reports take them from here, so that none of them can say more than the verdict does.
"""

from __future__ import annotations

from harness.compare.estimates import MIN_SEEDS
from harness.compare.keys import Comparison, Decision, Measure, Pair
from harness.compare.numbers import points, with_interval
from harness.compare.power import MOST_SEEDS

CLAIMS: dict[Decision, str] = {
    "different": "Different from {baseline}",
    "equivalent": "Equivalent to {baseline}, within ±{margin} points",
    "identical": "Identical to {baseline} in these seeds, in every answer of every step",
    "refused": "No verdict against {baseline}",
    "cannot tell": "May or may not differ from {baseline}, which these runs cannot tell",
}
"""What each verdict claims. None but `equivalent` speaks of other trainings being alike."""
FEW_CLUSTERS = 4.0
"""Where clusters tell less than so many of equal size, the output says that they leave little power."""


def verdict_text(pair: Pair) -> str:
    """A verdict as a cell: the word, and what stands behind it or what another verdict would take."""
    text: str = pair["verdict"]
    if pair["verdict"] == "refused":
        return f"refused ({pair['refused']})"
    seeds = pair["difference"]["seeds"]
    of = f"{seeds} of {seeds} seeds"
    if pair["verdict"] == "identical":
        more = f"{MIN_SEEDS} are needed" if seeds < MIN_SEEDS else "a margin is needed"
        return f"identical in {of}; {more} to generalise"
    if pair["identical"]:
        return f"{text} (identical in {of})"
    if pair["verdict"] == "cannot tell":
        text += f" ({'; '.join(found)})" if (found := _lacking(pair)) else ""
    return text + _alone(pair)


def _lacking(pair: Pair) -> list[str]:
    """Why it cannot be told, and what it takes."""
    if not pair["learned"]:
        return ["nothing could be learned"]
    found, needed = pair["difference"], pair["collapses"]["seeds_needed"]
    lacking = (
        [f"detectable: {points(pair['detectable'])} points"]
        if pair["detectable"] is not None
        else []
    )
    if needed is not None and found["seeds"] < needed:
        lacking.append(f"needs {needed} {counted(pair)} for 80 % power to show equivalence")
    elif needed is None and pair["p_equivalence"] is not None and found["seeds"] > 1:
        lacking.append(f"{MOST_SEEDS} {counted(pair)} do not give 80 % power to show equivalence")
    if few_clusters(pair):
        lacking.append(
            f"{found['clusters']} clusters tell as much as {found['equal_clusters']:.1f} equal ones"
        )
    return lacking


def counted(pair: Pair) -> str:
    """Return what a verdict counts as independent trainings: seeds, or starts where there are several."""
    return "starts" if "starts" in pair else "seeds"


def few_clusters(pair: Pair) -> bool:
    """Whether clusters, not seeds, leave little power."""
    return (
        pair["difference"]["clusters"] > 1 and pair["difference"]["equal_clusters"] < FEW_CLUSTERS
    )


def conclusions(comparison: Comparison) -> list[str]:
    """What the verdicts come to, a sentence for each that occurs; then what the measures on the way do."""
    names = {"baseline": comparison["baseline"], "margin": points(comparison["margin"])}
    found = []
    for decision, claim in CLAIMS.items():
        chosen = [pair for pair in comparison["pairs"] if pair["verdict"] == decision]
        if chosen:
            found.append(f"{claim.format(**names)}: {'; '.join(map(_told, chosen))}.")
    return [*found, *_on_the_way(comparison)]


def _told(pair: Pair) -> str:
    """An arm with its difference, where there is one to tell."""
    if pair["verdict"] == "refused":
        return f"{pair['arm']} ({pair['refused']})"
    if pair["identical"]:
        seeds = pair["difference"]["seeds"]
        return f"{pair['arm']} ({seeds} seed{'s' * (seeds > 1)})"
    return f"{pair['arm']} ({with_interval(pair['difference'], signed=True)} points{_alone(pair)})"


def _alone(pair: Pair) -> str:
    """That no trainings of several seeds were compared one by one, and why."""
    return (
        ""
        if not pair["one_seed"]
        else ", one seed"
        if pair["paired_by"] == "seed"
        else ", no seed in common"
    )


def _on_the_way(comparison: Comparison) -> list[str]:
    """Secondary measures whose difference is shown, and those whose is not."""
    same = {
        pair["arm"]
        for pair in comparison["pairs"]
        if pair["identical"] or pair["verdict"] == "refused"
    }
    found = []
    for measure in comparison["learning"]["measures"]:
        shown: dict[Decision, list[str]] = {"different": [], "cannot tell": []}
        for arm, measures in comparison["learning"]["arms"].items():
            one = measures[measure]
            if one["difference"] is None or arm in same:
                continue
            decision: Decision = (
                "different" if one.get("p_holm", 1.0) < comparison["alpha"] else "cannot tell"
            )
            shown[decision].append(
                f"{arm} ({with_interval(one['difference'], signed=True)} points)"
            )
        for decision, arms in shown.items():
            if arms:
                claim = CLAIMS[decision].format(baseline=comparison["baseline"], margin="")
                found.append(
                    f"Secondary, {measure_text(measure, comparison)}. {claim}: {'; '.join(arms)}."
                )
    return found


def measure_text(measure: Measure, comparison: Comparison) -> str:
    """What a measure on the way is called."""
    return {"checkpoint": f"at step {comparison['checkpoint']}", "area": "area under curve"}[
        measure
    ]
