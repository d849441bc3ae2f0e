"""A comparison in brief: one sentence that answers the question, one table, one picture."""

from __future__ import annotations

from harness.compare.columns import Table
from harness.compare.costs import Price, per_right_answer, significant, tokens_per_answer
from harness.compare.keys import Arm, Comparison, EstimateData, Pair
from harness.compare.numbers import number, p_value, points, with_interval
from harness.compare.pairs import any_one_seed, identical_arms, pairs_by_arm
from harness.compare.verdicts import verdict_text
from harness.util.formatting import measured, shortened

PICTURE_WIDTH = 40
"""Columns of a terminal between the ends of the picture's scale."""
NAME_WIDTH = 28
"""Columns of a terminal for an arm's name in the picture."""


def answer(comparison: Comparison, price: Price | None = None) -> str:
    """Return the comparison's result in one sentence, which claims no more than its verdicts."""
    parts = []
    if not comparison["pairs"]:
        parts.append(_alone(comparison["arms"][0], comparison))
    same = identical_arms(comparison)
    if same:
        parts.append(
            f"{_listed(same)} gave the same answers as {comparison['baseline']} in every step"
        )
    refused: dict[str, list[str]] = {}
    for pair in comparison["pairs"]:
        if pair["verdict"] == "refused":
            refused.setdefault(pair.get("refused", ""), []).append(pair["arm"])
        elif not pair["identical"]:
            parts.append(_verdict(pair, comparison))
    # Arms of a study are often refused for one reason, which is long.
    for reason, names in refused.items():
        parts.append(f"no verdict on {_listed(names)} ({reason})")
    if cheapest := _cheapest(comparison, price):
        parts.append(cheapest)
    text = "; ".join(parts)
    # A sentence that begins with an arm keeps the letters of its name.
    begins_with_word = text.startswith(("no ", "nothing ", "cannot tell "))
    return f"{text[0].upper()}{text[1:]}." if begins_with_word else f"{text}."


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _alone(arm: Arm, comparison: Comparison) -> str:
    """Return the result of the only arm in one sentence."""
    reached = arm["accuracy_final"]
    name = measured(comparison.get("graded", False))
    return f"{arm['name']} has {name} {points(reached['mean'])} % ({_interval(reached)})"


def _verdict(pair: Pair, comparison: Comparison) -> str:
    """Return one pair's verdict in words."""
    arm, baseline, difference = pair["arm"], pair["baseline"], pair["difference"]
    interval = _interval(difference, signed=True)
    if not pair["learned"]:
        return f"nothing could be learned by {arm} or {baseline}, so they cannot be distinguished"
    if pair["verdict"] == "equivalent":
        stated = ", a margin not stated beforehand" if "margin_source" in comparison else ""
        return (
            f"{arm} and {baseline} are equivalent within ±{points(comparison['margin'])} points"
            f"{stated} ({interval} points)"
        )
    if pair["verdict"] == "different":
        direction = "lower" if difference["mean"] < 0 else "higher"
        size = points(abs(difference["mean"]))
        return f"{arm} is {size} points {direction} than {baseline} ({interval} points)"
    # The interval is that of this pair alone, and the verdict holds for all pairs together.
    excludes_zero = difference["low"] > 0 or difference["high"] < 0
    corrected = f"; corrected p = {p_value(pair['p_holm'])}" if excludes_zero else ""
    return f"cannot tell whether {arm} differs from {baseline} ({interval} points{corrected})"


def _interval(estimate: EstimateData, signed: bool = False) -> str:
    low, high = points(estimate["low"], signed), points(estimate["high"], signed)
    return f"95 % interval {low} to {high}"


def _cheapest(comparison: Comparison, price: Price | None) -> str:
    """Return the arm with the cheapest right answers; empty without a choice or counts."""
    costs: dict[str, float] = {}
    for arm in comparison["arms"]:
        cost = _right_answer(arm, price)
        if cost is not None:
            costs[arm["name"]] = cost
    # The only arm with a cost is not the cheapest one, as long as those of others are unknown.
    if not costs or (len(comparison["arms"]) > 1 and len(costs) < 2):
        return ""
    name = min(costs, key=lambda arm_name: costs[arm_name])
    amount = significant(costs[name])
    if price is None:
        takes, amount = "takes", f"{amount} tokens per right answer"
    else:
        takes, amount = "costs", f"{amount} per right answer at the given prices"
    if len(costs) == 1:
        return f"it {takes} {amount}"
    # Costs that look alike in print do not differ by more than is known.
    if len(set(map(significant, costs.values()))) == 1:
        # An arm without a right answer takes more than any number of tokens.
        return f"each {takes} {amount}" if len(costs) == len(comparison["arms"]) else ""
    return f"cheapest: {name}, {amount}"


def _right_answer(arm: Arm, price: Price | None) -> float | None:
    """Return tokens, or money, that a right answer of an arm takes."""
    tokens = tokens_per_answer(arm)
    if tokens is None:
        return None
    return per_right_answer(arm, sum(tokens) if price is None else price.of(*tokens))


def table(comparison: Comparison, price: Price | None = None) -> Table:
    """Return the one table: what each arm reached, how it differs, and what an answer cost."""
    by_arm = pairs_by_arm(comparison)
    graded = comparison.get("graded", False)
    heads = ["arm", f"{measured(graded)}{'' if graded else ' %'}"]
    if comparison["pairs"]:
        heads += ["difference (points)", "verdict"]
    heads += ["prompt tokens", "response tokens", "tokens/right answer"]
    if price is not None:
        heads.append("price/1,000 right answers")
    has_gpu = any(arm["gpu_hours"] for arm in comparison["arms"])
    if has_gpu:
        heads.append("GPU-hours")
    rows = []
    for arm in comparison["arms"]:
        row = [arm["name"], with_interval(arm["accuracy_final"])]
        if comparison["pairs"]:
            pair = by_arm.get(arm["name"])
            row += ["baseline", ""] if pair is None else _differs(pair)
        prompt, response = tokens_per_answer(arm) or (None, None)
        row += [number(prompt, 0), number(response, 0), significant(_right_answer(arm, None), 3)]
        if price is not None:
            cost = _right_answer(arm, price)
            row.append(significant(None if cost is None else 1000 * cost, 3))
        if has_gpu:
            row.append(number(arm["gpu_hours"], 2))
        rows.append(row)
    note = (
        "Intervals: 95 %. Tokens: "
        "of one rollout of the last validation that ended well, all its calls."
    )
    if any_one_seed(comparison) and comparison["kind"] == "train":
        note += " One seed: another training may reach something else."
    return Table("brief", "", heads, rows, note)


def _differs(pair: Pair) -> list[str]:
    if pair["identical"]:
        return ["identical", verdict_text(pair)]
    return [with_interval(pair["difference"], signed=True), verdict_text(pair)]


def picture(comparison: Comparison) -> str:
    """Return every arm's mean and interval on one scale, as lines of text; empty without any."""
    reached: dict[str, EstimateData] = {}
    lows: list[float] = []
    highs: list[float] = []
    for arm in comparison["arms"]:
        estimate = arm["accuracy_final"]
        reached[arm["name"]] = estimate
        lows.append(estimate["low"])
        highs.append(estimate["high"])
    low, high = min(lows), max(highs)
    # The scale has room at both ends but never reaches past what a reward can be, unless an
    # interval does.
    room = max((high - low) * 0.05, 0.005)
    bottom, top = comparison.get("span", (0.0, 1.0))
    low, high = max(low - room, min(low, bottom)), min(high + room, max(high, top))

    def column(value: float) -> int:
        return round((value - low) / (high - low) * (PICTURE_WIDTH - 1))

    width = min(NAME_WIDTH, max(map(len, reached)))
    lines = []
    for name, estimate in reached.items():
        left_end, right_end = column(estimate["low"]), column(estimate["high"])
        cells = [" "] * PICTURE_WIDTH
        for position in range(left_end, right_end + 1):
            cells[position] = "─"
        cells[left_end], cells[right_end] = "├", "┤"
        # The mean is drawn last: in a short interval it covers an end, not the other way round.
        cells[column(estimate["mean"])] = "●"
        shown = shortened(name, width, "…")
        lines.append(f"{shown:{width}}  {''.join(cells).rstrip()}")
    left, right = points(low), points(high)
    gap = PICTURE_WIDTH - len(left) - len(right)
    lines.append(f"{'':{width}}  {left}{' ' * gap}{right}")
    return "\n".join(lines)
