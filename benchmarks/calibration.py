"""Compare how often smaller studies find a whole study's result with their power.

    python benchmarks/calibration.py runs/probe_planted [runs/probe_worth ...] --baseline none \\
        [--seeds 3 4 5]

Every arm is compared with the baseline by all of its seeds: the difference, and its variance
components. A smaller study is one of some of the seeds; all choices are tested as a comparison of
two arms tests them, at 5 %. `promised` is the power that `harness power` gives so many seeds for
that difference with those components. Choices share seeds, so shares vary more than with as many
independent studies; and the difference is known no better than its interval. Folders may be studies
that share nothing but their settings: an arm that is the baseline under another name shows how
often nothing is found to differ.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

from harness.compare.comparison import ALPHA
from harness.compare.distributions import root
from harness.compare.estimates import crossed_mean
from harness.compare.power import Variances
from harness.compare.scores import paired_differences, scores
from harness.compare.selection import select
from harness.runs.reading import Run
from harness_power_analysis.planning import variances

CERTAIN = 0.999


def promised(spread: Variances, effect: float, seeds: int) -> float:
    """Return the power of so many seeds for an effect, between ALPHA and CERTAIN."""

    def lacking(power: float) -> float:
        return spread.detectable(seeds, spread.sizes, power, ALPHA) - effect

    low = ALPHA + 0.001
    if lacking(CERTAIN) < 0:
        return CERTAIN
    return root(lacking, low, CERTAIN) if lacking(low) < 0 else ALPHA


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", type=Path, nargs="+")
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    options = parser.parse_args()
    arms: dict[str, list[Run]] = {}
    for study in options.studies:
        for run in select([study]).runs:
            arms.setdefault(run.arm, []).append(run)
    base = arms.pop(options.baseline)
    print("| arm | difference (points) | seeds | promised | found | of studies |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for arm, runs in arms.items():
        rows = paired_differences(scores(runs), scores(base))[0]
        whole, spread = (
            crossed_mean(rows),
            variances({options.baseline: base, arm: runs}, options.baseline),
        )
        assert whole is not None
        every = sorted(rows["seed"].unique())
        points = f"{100 * whole.mean:+.1f} [{100 * whole.low:+.1f}, {100 * whole.high:+.1f}]"
        for seeds in options.seeds:
            chosen = list(combinations(every, seeds))
            tests = [crossed_mean(rows.filter(rows["seed"].is_in(some))) for some in chosen]
            found = sum(test is not None and test.p_difference() < ALPHA for test in tests)
            power, share = 100 * promised(spread, abs(whole.mean), seeds), 100 * found / len(chosen)
            print(
                f"| {arm} | {points} | {seeds} | {power:.0f} % | {share:.0f} % "
                f"| {found} of {len(chosen)} |"
            )


if __name__ == "__main__":
    main()
