"""The wording of verdicts in tables, sentences and reports; none claims more than the verdict."""

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
    "cannot tell": "Cannot tell if different from {baseline}",
}
"""The claim of each verdict. Only `equivalent` covers other trainings."""
FEW_CLUSTERS = 4.0
"""Below this effective number of clusters the output states that clusters limit the power."""


def verdict_text(pair: Pair) -> str:
    """Return a verdict as a cell: the word, and its evidence or what another verdict would need."""
    text: str = pair["verdict"]
    if pair["verdict"] == "refused":
        return f"refused ({pair['refused']})"
    seeds = pair["difference"]["seeds"]
    all_seeds = f"{seeds} of {seeds} seeds"
    if pair["verdict"] == "identical":
        more = f"{MIN_SEEDS} are needed" if seeds < MIN_SEEDS else "a margin is needed"
        return f"identical in {all_seeds}; {more} to generalise"
    if pair["identical"]:
        return f"{text} (identical in {all_seeds})"
    lacking = _lacking(pair) if pair["verdict"] == "cannot tell" else []
    if lacking:
        text += f" ({'; '.join(lacking)})"
    return text + _alone(pair)


def _lacking(pair: Pair) -> list[str]:
    """Return why the verdict is open, and what it needs."""
    if not pair["learned"]:
        return ["nothing could be learned"]
    difference, needed = pair["difference"], pair["collapses"]["seeds_needed"]
    lacking = []
    if pair["detectable"] is not None:
        lacking.append(f"detectable: {points(pair['detectable'])} points")
    # Without a margin there is nothing to be equivalent within, whatever the number of seeds.
    if needed is not None and difference["seeds"] < needed:
        lacking.append(f"needs {needed} {counted(pair)} for 80 % power to show equivalence")
    elif needed is None and pair["p_equivalence"] is not None and difference["seeds"] > 1:
        lacking.append(
            f"needs more than {MOST_SEEDS} {counted(pair)} for 80 % power to show equivalence"
        )
    if few_clusters(pair):
        lacking.append(
            f"effective number of clusters: {difference['equal_clusters']:.1f} "
            f"of {difference['clusters']}"
        )
    return lacking


def counted(pair: Pair) -> str:
    """Return the unit that verdicts count as independent: seeds, or starts if several."""
    return "starts" if "starts" in pair else "seeds"


def few_clusters(pair: Pair) -> bool:
    """Return whether clusters, not seeds, limit the power."""
    return (
        pair["difference"]["clusters"] > 1 and pair["difference"]["equal_clusters"] < FEW_CLUSTERS
    )


def conclusions(comparison: Comparison) -> list[str]:
    """Return a sentence for each verdict that occurs, then for the secondary measures."""
    names = {"baseline": comparison["baseline"], "margin": points(comparison["margin"])}
    claims = []
    for decision, claim in CLAIMS.items():
        chosen = [pair for pair in comparison["pairs"] if pair["verdict"] == decision]
        if chosen:
            claims.append(f"{claim.format(**names)}: {'; '.join(map(_arm_text, chosen))}.")
    return claims + _on_the_way(comparison)


def _arm_text(pair: Pair) -> str:
    """Return an arm with its difference, if there is one."""
    if pair["verdict"] == "refused":
        return f"{pair['arm']} ({pair['refused']})"
    if pair["identical"]:
        seeds = pair["difference"]["seeds"]
        return f"{pair['arm']} ({seeds} seed{'s' * (seeds > 1)})"
    return f"{pair['arm']} ({with_interval(pair['difference'], signed=True)} points{_alone(pair)})"


def _alone(pair: Pair) -> str:
    """Return why trainings of several seeds were not compared pairwise."""
    if not pair["one_seed"]:
        return ""
    return ", one seed" if pair["paired_by"] == "seed" else ", no seed in common"


def _on_the_way(comparison: Comparison) -> list[str]:
    """Return sentences on secondary measures with and without a shown difference."""
    # Neither identical nor refused arms have a difference that means anything on the way.
    left_out: set[str] = set()
    for pair in comparison["pairs"]:
        if pair["identical"] or pair["verdict"] == "refused":
            left_out.add(pair["arm"])
    claims = []
    for measure in comparison["learning"]["measures"]:
        shown: dict[Decision, list[str]] = {"different": [], "cannot tell": []}
        for arm, measures in comparison["learning"]["arms"].items():
            learned = measures[measure]
            if learned["difference"] is None or arm in left_out:
                continue
            different = learned.get("p_holm", 1.0) < comparison["alpha"]
            difference = with_interval(learned["difference"], signed=True)
            shown["different" if different else "cannot tell"].append(
                f"{arm} ({difference} points)"
            )
        for decision, arms in shown.items():
            if arms:
                claim = CLAIMS[decision].format(baseline=comparison["baseline"], margin="")
                claims.append(
                    f"Secondary, {measure_text(measure, comparison)}. {claim}: {'; '.join(arms)}."
                )
    return claims


def measure_text(measure: Measure, comparison: Comparison) -> str:
    """Return the name of a secondary measure."""
    return {"checkpoint": f"at step {comparison['checkpoint']}", "area": "area under curve"}[
        measure
    ]
