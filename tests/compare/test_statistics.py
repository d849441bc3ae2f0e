"""Every statistic against a published or independently computed value, and simulations of the verdict's test."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from harness.compare import statistics
from harness.compare.comparison import compare, verdict
from harness.compare.estimates import (
    COLLAPSE,
    MIN_SEEDS,
    Estimate,
    accuracy,
    cluster_variance,
    crossed_mean,
    detectable_effect,
    seeds_for_equivalence,
    share_df,
    tail_p,
    unseen_share,
)
from harness.compare.power import Spread
from harness.compare.selection import select

from .synthetic import write_run


def frame(values: np.ndarray) -> pl.DataFrame:
    """Rows of an array [seeds, databases, tasks]."""
    seed, database, task = np.indices(values.shape).reshape(3, -1)
    return pl.DataFrame(
        {
            "seed": seed,
            "cluster": database.astype(str),
            "task_id": database * 10_000 + task,
            "value": values.ravel(),
        }
    )


def test_mcnemar_exact_is_the_binomial_test_of_discordant_pairs() -> None:
    # Fagerland, Lydersen and Laake 2013, BMC Med. Res. Methodol. 13:91, table 1: airway hyper-responsiveness of
    # 21 children before and after stem cell transplantation, 1 against 7 discordant; exact conditional p = 0.0703.
    first = [1] * 1 + [1] * 1 + [0] * 7 + [0] * 12
    second = [1] * 1 + [0] * 1 + [1] * 7 + [0] * 12
    found = statistics.mcnemar_exact(first, second)
    assert (found.only_first, found.only_second) == (1, 7)
    assert found.p == pytest.approx(0.0703, abs=5e-5)


def test_holm_by_hand() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, made monotone: 0.02, 0.03, 0.06, 0.06.
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([]) == []


def test_equivalence_is_statsmodels_tost_when_databases_are_the_unit() -> None:
    from scipy import stats
    from statsmodels.stats.weightstats import DescrStatsW

    means = np.array([0.01, -0.02, 0.03, 0.0, 0.015, -0.01])
    found = crossed_mean(frame(means.reshape(1, 6, 1)))
    assert found is not None and found.unit == "cluster"
    assert found.p_equivalence(0.03) == pytest.approx(DescrStatsW(means).ttost_mean(-0.03, 0.03)[0])
    assert found.p_difference() == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    interval = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_several_seeds_on_one_database_are_a_paired_t_test_over_seeds() -> None:
    # Student 1908, Biometrika 6, 1-25: extra hours of sleep of ten patients under two drugs; t = 4.06, p = 0.0028.
    first = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    second = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    found = crossed_mean(frame((second - first).reshape(10, 1, 1)))
    assert found is not None and found.unit == "seed" and found.df == pytest.approx(9)
    assert found.mean / found.se == pytest.approx(4.062, abs=5e-4)
    assert found.p_difference() == pytest.approx(0.00283, abs=5e-6)


def test_two_way_variance_is_that_of_statsmodels() -> None:
    from statsmodels.regression.linear_model import OLS

    generator = np.random.default_rng(3)
    values = (
        generator.normal(size=(5, 8, 4))
        + generator.normal(size=(5, 1, 1))
        + generator.normal(size=(1, 8, 1))
    )
    rows = frame(values)
    groups = np.column_stack([rows["seed"], rows["cluster"].cast(int)])
    fit = OLS(rows["value"].to_numpy(), np.ones((len(rows), 1))).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True}
    )
    found = crossed_mean(rows)
    assert found is not None
    assert found.se**2 == pytest.approx(float(fit.cov_params()[0, 0]), rel=1e-9)


def test_cluster_variance_of_equal_clusters_is_the_variance_of_their_means() -> None:
    values = np.array([[1.0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1]])
    found = cluster_variance(values.ravel(), np.repeat([0, 1, 2], 4))
    assert found[0] == pytest.approx(values.mean(axis=1).var(ddof=1) / 3) and share_df(
        found[1]
    ) == pytest.approx(2)


def test_detectable_effect_is_that_of_a_textbook_power_table() -> None:
    # Cohen 1988, table 2.3.5 (two-sided 0.05): n = 34 pairs find d = 0.5 with power 0.81.
    se, df = 1 / math.sqrt(34), 33
    assert detectable_effect(se, df, power=0.8078) == pytest.approx(0.5, abs=0.002)


@pytest.mark.parametrize("df", [1, 1.1, 1.5, 2, 2.2, 2.5, 3, 4, 5, 7, 10, 15, 30, 60, 120, 200])
def test_detectable_effect_has_the_promised_power_for_few_degrees_of_freedom_too(df: float) -> None:
    from scipy import stats

    for alpha in (0.05, 0.05 / 2, 0.05 / 4, 0.05 / 10, 0.001):
        beyond = stats.t.isf(alpha / 2, df)
        for power in (0.1, 0.5, 0.8, 0.9, 0.95, 0.99):
            found = detectable_effect(1.0, df, power, alpha)
            lower = np.nan_to_num(
                stats.nct.cdf(-beyond, df, found)
            )  # nan where it is next to nothing
            assert stats.nct.sf(beyond, df, found) + lower == pytest.approx(power, abs=1e-6)
    assert detectable_effect(1.0, 2, 0.8, 0.05 / 4) == pytest.approx(11.34, abs=0.005)
    assert detectable_effect(1.0, df, 0.04, 0.05) == pytest.approx(
        0, abs=1e-9
    )  # found by chance alone


def test_interquartile_mean_and_probability_of_improvement_by_hand() -> None:
    assert statistics.interquartile_mean([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx(
        (2 + 3 + 4 + 5) / 4
    )
    # Pairs: 3>1, 3>2, 3=3, 1=1, 1<2, 1<3 -> (2 + 2 * 0.5) / 6
    assert statistics.probability_of_improvement([3, 1], [1, 2, 3]) == pytest.approx(0.5)
    assert statistics.probability_of_improvement([5, 6], [1, 2, 3]) == 1.0
    assert statistics.probability_of_improvement([1, 1], [1, 1]) == 0.5


def test_cluster_bootstrap_of_many_clusters_meets_the_normal_interval() -> None:
    generator = np.random.default_rng(0)
    means = generator.normal(0.1, 0.2, 400)
    low, high = statistics.cluster_bootstrap(frame(means.reshape(1, 400, 1))) or (0, 0)
    half = 1.96 * means.std(ddof=1) / 20
    assert (low, high) == pytest.approx((means.mean() - half, means.mean() + half), abs=0.003)
    assert statistics.cluster_bootstrap(frame(np.zeros((1, 1, 5)))) is None


def test_hierarchical_bootstrap_sees_both_seeds_and_databases() -> None:
    generator = np.random.default_rng(1)
    values = (
        generator.normal(size=(40, 1, 1)) * 0.3
        + generator.normal(size=(1, 40, 1)) * 0.3
        + np.zeros((40, 40, 2))
    )
    low, high = statistics.hierarchical_bootstrap(frame(values)) or (0, 0)
    expected = (
        2
        * 1.96
        * math.sqrt(values.mean(axis=(1, 2)).var() / 40 + values.mean(axis=(0, 2)).var() / 40)
    )
    assert high - low == pytest.approx(expected, rel=0.06)
    assert statistics.hierarchical_bootstrap(frame(np.zeros((1, 3, 2)))) is None


def test_stratified_bootstrap_interval_holds_the_estimate() -> None:
    scores = np.random.default_rng(2).uniform(size=(10, 6))
    low, high = statistics.interquartile_mean_interval(scores) or (0, 0)
    assert low < statistics.interquartile_mean(scores.ravel().tolist()) < high


def test_no_difference_at_all_is_a_matter_of_seeds_not_of_questions() -> None:
    one, several = (
        crossed_mean(frame(np.zeros((1, 2, 4)))),
        crossed_mean(frame(np.zeros((3, 6, 40)))),
    )
    assert one is not None and several is not None
    assert one.p_equivalence(0.05) == pytest.approx(0.95**8)
    assert several.p_equivalence(0.05) == pytest.approx((1 - 0.05 / COLLAPSE) ** 3)
    assert one.p_difference() == several.p_difference() == 1.0 and several.detectable() is None
    assert (
        several.high == -several.low == pytest.approx(COLLAPSE * (1 - 0.025 ** (1 / 3)), abs=1e-5)
    )


@pytest.mark.parametrize("mean", [-1.0, 1.0])
@pytest.mark.parametrize(
    ("shape", "independent"),
    [
        ((1, 1, 1), 1),
        ((1, 1, 5), 5),
        ((1, 1, 6), 6),
        ((1, 4, 25), 4),
        ((1, 12, 3), 12),
        ((5, 1, 40), 5),
        ((8, 1, 1), 8),
        ((8, 30, 2), 8),
        ((20, 3, 2), 3),
    ],
)
def test_full_differences_get_the_sign_test_of_their_independent_units(
    mean: float, shape: tuple[int, int, int], independent: int
) -> None:
    found = crossed_mean(frame(np.full(shape, mean)))
    assert found is not None and found.independent == independent
    p = found.p_difference()
    assert p == min(1.0, 2 * 0.5**independent)
    assert -1 <= found.low <= found.mean <= found.high <= 1
    if shape[0] == 1:
        assert (p < 0.05) == (found.low > 0 or found.high < 0)


def test_one_seed_with_full_differences_agrees_with_mcnemar() -> None:
    for questions in (1, 2, 6, 9):
        found = crossed_mean(frame(np.full((1, 1, questions), -1.0)))
        assert found is not None
        test = statistics.mcnemar_exact([0] * questions, [1] * questions)
        assert found.p_difference() == pytest.approx(test.p)


def test_one_question_decides_nothing(tmp_path: Path) -> None:
    one = write_run(tmp_path, accuracy=(1, 1), kind="eval", val_limit=1)
    other = write_run(tmp_path, "langgraph_sql", accuracy=(0, 0), kind="eval", val_limit=1)
    (pair,) = compare(select([one.path, other.path]))["pairs"]
    difference = pair["difference"]
    assert difference["mean"] == -1 and (difference["low"], difference["high"]) == (-1, 0.95)
    assert pair["p"] == pair["item"]["mcnemar"][0]["p"] == 1.0 and pair["verdict"] == "cannot tell"


@pytest.mark.parametrize("value", [0.05, 0.3, 0.5, 0.9])
def test_equal_smaller_differences_have_an_interval_that_agrees_with_their_p(value: float) -> None:
    for questions in range(1, 40):
        found = crossed_mean(frame(np.full((1, 1, questions), value)))
        assert found is not None
        assert found.p_difference() >= min(1.0, 2 * 0.5**questions)
        assert (found.p_difference() < 0.05) == (found.low > 0)
        assert -1 <= found.low < value < found.high <= 1


def test_an_interval_stays_within_the_largest_difference() -> None:
    values = np.array([1.0, -1.0, 1.0]).reshape(1, 1, 3)
    one, ten = crossed_mean(frame(values)), crossed_mean(frame(10 * values), 10.0)
    assert one is not None and (one.low, one.high) == (-1, 1)
    assert ten is not None and (ten.low, ten.high) == (-10, 10)


def test_identical_trainings_are_equivalent_from_eight_seeds_on() -> None:
    assert verdict(1.0, 0.17, MIN_SEEDS, identical=True) == "equivalent"
    assert verdict(1.0, 0.17, MIN_SEEDS) == verdict(1.0, 0.001, MIN_SEEDS - 1) == "cannot tell"
    assert (
        verdict(1.0, 0.17, MIN_SEEDS - 1, identical=True)
        == verdict(1.0, None, 20, identical=True)
        == "identical"
    )
    assert verdict(1.0, 0.001, 20, identical=True, learned=False) == verdict(
        1.0, 0.001, 20, learned=False
    )
    assert (
        verdict(1.0, 0.001, 20, learned=False) == "cannot tell"
        and verdict(0.01, None, 3, learned=False) == "different"
    )
    assert unseen_share(0, 8) == pytest.approx(1 - 0.05 ** (1 / 8)) and unseen_share(3, 3) == 1


@pytest.mark.parametrize(("collapsed", "seeds"), [(0, 8), (1, 14), (3, 20)])
def test_the_bound_on_collapses_is_the_exact_binomial_test(collapsed: int, seeds: int) -> None:
    from scipy import stats

    values = [-COLLAPSE] * collapsed + [0.0] * (seeds - collapsed)
    assert tail_p(values, COLLAPSE, 0.05) == pytest.approx(
        stats.binom.cdf(collapsed, seeds, 0.05 / COLLAPSE)
    )


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.1])
def test_so_many_seeds_as_are_asked_for_are_needed(margin: int) -> None:
    for family in (1, 4):
        needed = seeds_for_equivalence(margin, family)
        assert tail_p([0.0] * needed, COLLAPSE, margin) <= 0.05 / family
        assert needed == MIN_SEEDS or tail_p([0.0] * (needed - 1), COLLAPSE, margin) > 0.05 / family


def test_seeds_for_equivalence_reach_the_power_of_the_verdicts_own_test() -> None:
    """Seeds of 1 point, 12 clusters of 40 questions, right in 3 of 4 cases, no true difference."""
    generator, questions, right = np.random.default_rng(7), 480, 0.75
    spread = Spread(0.01**2, 2 * right * (1 - right) / questions, 0.0, 11.0)
    trials, sd = 150, 0.01 / math.sqrt(2)
    for seeds, low, high in ((14, 0.02, 0.2), (17, 0.7, 0.95), (18, 0.83, 0.99)):
        shown = 0
        for _ in range(trials):
            question = np.tile(np.arange(questions), seeds)
            seed = np.repeat(np.arange(seeds), questions)
            arms = [
                generator.random(len(seed)) < right + generator.normal(0, sd, seeds)[seed]
                for _ in range(2)
            ]
            rows = pl.DataFrame(
                {
                    "seed": seed,
                    "cluster": question // 40,
                    "task_id": question,
                    "value": arms[0].astype(float) - arms[1],
                }
            )
            estimate = crossed_mean(rows)
            assert estimate is not None
            shown += estimate.p_equivalence(0.05) < 0.05
        promised = spread.equivalence_power(seeds, 0.05)
        assert low < shown / trials < high
        assert abs(promised - shown / trials) < 4 * math.sqrt(0.25 / trials)
    assert seeds_for_equivalence(0.05) == 14
    needed = spread.seeds_for_equivalence(0.05)
    assert needed is not None and 17 <= needed <= 18
    assert spread.equivalence_power(needed, 0.05) >= 0.8


def test_no_number_of_seeds_shows_equivalence_where_clusters_scatter() -> None:
    assert Spread(0.0, 0.0, 0.05**2, 11.0).seeds_for_equivalence(0.05) is None
    assert Spread(0.0, 0.0, 0.0, 11.0).seeds_for_equivalence(0.05) == 14


def gains(wins: int, losses: int, questions: int) -> list[float]:
    return [1.0] * wins + [-1.0] * losses + [0.0] * (questions - wins - losses)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[gains(20, 20, 60), gains(20, 20, 60)]]),  # one seed, two databases, both even
        np.array(
            [[gains(3, 0, 100)], [gains(10, 7, 100)]]
        ),  # two seeds, one database, both three ahead
        np.array([[gains(6, 3, 50), gains(3, 0, 50)], [gains(3, 0, 50), gains(6, 3, 50)]]),
    ],
)
def test_clusters_that_coincide_by_luck_are_no_certainty(values: np.ndarray) -> None:
    found = crossed_mean(frame(values))
    assert found is not None and found.df == 1
    by_question = values.mean(axis=0).ravel()
    assert found.se**2 >= by_question.var(ddof=1) / len(by_question) * (1 - 1e-9)
    assert found.low < 0 < found.high and found.high - found.mean > 0.05
    assert verdict(found.p_difference(), found.p_equivalence(0.05), 20) == "cannot tell"


def test_scores_that_cancel_by_question_and_by_seed_still_vary() -> None:
    found = crossed_mean(frame(np.array([[[1.0, 0.0]], [[0.0, 1.0]]])))
    assert found is not None and found.se == pytest.approx(math.sqrt(1 / 3 / 4))


def test_a_difference_of_rounding_is_none() -> None:
    values = np.zeros((8, 4, 5))
    values[:, 0, 0] = 0.1 + 0.2 - 0.3
    assert values.mean() != 0
    estimate = crossed_mean(frame(values))
    assert estimate is not None
    assert estimate.mean == 0 and estimate.p_difference() == 1


def test_values_equal_up_to_rounding_are_equal() -> None:
    values = np.zeros((1, 2, 40))
    values[0, 0] = 0.1 + 0.2 - 0.3
    found = crossed_mean(frame(values))
    assert (
        found is not None and found.se == 0 and found.p_equivalence(0.05) == pytest.approx(0.95**80)
    )


@pytest.mark.parametrize(("seeds", "databases", "questions"), [(2, 1, 100), (1, 2, 60)])
def test_false_alarms_are_no_more_where_clusters_coincide(
    seeds: int, databases: int, questions: int
) -> None:
    """Of draws without a true difference, those whose cluster means happen to be the same."""
    draw = np.random.default_rng(17).random((2000, seeds, databases, questions))
    values = (draw < 0.05).astype(float) - (draw > 0.95)
    sums = values.sum(axis=3).reshape(2000, -1)
    lucky = values[np.ptp(sums, axis=1) == 0][:100]
    assert len(lucky) == 100  # one in ten: no rarity
    found = [crossed_mean(frame(one)) for one in lucky]
    alarms = sum(one is not None and one.p_difference() < 0.05 for one in found)
    proved = sum(one is not None and one.p_equivalence(0.05) < 0.05 for one in found)
    assert alarms <= 5 and proved <= 5


def test_accuracy_stays_between_0_and_1_and_has_doubt_at_the_ends() -> None:
    perfect = accuracy(frame(np.ones((1, 3, 10))))
    assert perfect is not None and perfect.high == pytest.approx(1.0)
    assert perfect.low == pytest.approx(0.8865, abs=5e-4)  # Wilson's interval of 30 of 30
    assert accuracy(frame(np.zeros((0, 0, 0)))) is None


EQUAL, UNEQUAL = [40] * 6, [100, 60, 40, 20, 12, 8]
ONE_LARGE = [150] + [3] * 10
SPIDER = (
    [1] * 4
    + [2] * 4
    + [4, 5, 6, 6]
    + [8] * 7
    + [10] * 4
    + [12] * 4
    + [14] * 4
    + [22, 24, 24, 28, 34, 36]
)
"""Questions by database, of as unequal number as Spider's."""


def estimates(
    repeats: int,
    seeds: int,
    sizes: list[int],
    mean: float,
    by_seed: float,
    by_database: float,
    *,
    graded: bool = False,
) -> list[Estimate]:
    """Of paired differences with this true mean, shifted by seed and by database, right-or-wrong or graded."""
    generator = np.random.default_rng(
        [repeats, seeds, len(sizes), int(1000 * mean), int(1000 * by_seed)]
    )
    database = np.repeat(np.arange(len(sizes)), sizes)
    seed, task = np.indices((seeds, len(database))).reshape(2, -1)
    rows = pl.DataFrame({"seed": seed, "cluster": database[task], "task_id": task, "value": 0.0})
    found = []
    for _ in range(repeats):
        shift = (
            generator.normal(0, by_seed, (seeds, 1))
            + generator.normal(0, by_database, len(sizes))[database]
        )
        up = np.clip(0.2 + (mean + shift) / 2, 0.001, 0.999)
        down = np.clip(0.2 - (mean + shift) / 2, 0.001, 0.999)
        if graded:
            values = generator.beta(2 * up, 2 - 2 * up) - generator.beta(2 * down, 2 - 2 * down)
        else:
            draw = generator.random(up.shape)
            values = (draw < up).astype(float) - (draw > 1 - down)
        one = crossed_mean(rows.with_columns(value=values.ravel()))
        assert one is not None
        found.append(one)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "sizes", "by_seed", "by_database", "graded"),
    [
        (1, UNEQUAL, 0.0, 0.05, False),
        (3, EQUAL, 0.0, 0.0, False),
        (3, SPIDER, 0.04, 0.05, False),
        (8, UNEQUAL, 0.0, 0.05, False),
        (8, UNEQUAL, 0.04, 0.05, True),
        (8, EQUAL, 0.04, 0.05, True),
        (16, SPIDER, 0.04, 0.05, False),
        (16, EQUAL, 0.02, 0.0, True),
        (2, SPIDER, 0.1, 0.04, True),
        (8, ONE_LARGE, 0.03, 0.04, False),
        (16, ONE_LARGE, 0.03, 0.04, False),
        (16, [60, 60], 0.03, 0.04, False),
        (8, [120, 1], 0.03, 0.04, False),
    ],
)
def test_false_alarms_are_at_most_nominal_and_intervals_cover(
    seeds: int, sizes: list[int], by_seed: float, by_database: float, graded: bool
) -> None:
    """Shifts by seed and database, databases of unequal size, graded rewards; at no difference and at the margin."""
    repeats, margin = 400, 0.1
    noise = 2.6 * math.sqrt(0.05 * 0.95 / repeats)  # 99 % of a fair simulation
    same = estimates(repeats, seeds, sizes, 0.0, by_seed, by_database, graded=graded)
    assert sum(one.p_difference() < 0.05 for one in same) / repeats <= 0.05 + noise
    apart = estimates(repeats, seeds, sizes, margin, by_seed, by_database, graded=graded)
    covered = sum(one.low <= margin <= one.high for one in apart) / repeats
    assert covered >= 0.93 - noise
    if (
        seeds >= MIN_SEEDS and by_seed and by_database and sizes in (EQUAL, SPIDER)
    ):  # elsewhere on the safe side
        assert covered <= 0.97 + noise
    p_values = [one.p_equivalence(margin) if seeds >= MIN_SEEDS else 0.0 for one in apart]
    proved = sum(verdict(1.0, p, seeds) == "equivalent" for p in p_values) / repeats
    assert proved <= 0.05 + noise


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[150, 40, 30, 10, 5], [60] * 3])
def test_four_arms_raise_no_more_false_alarms_together_than_one(sizes: list[int]) -> None:
    repeats, arms = 300, 4
    found = estimates(arms * repeats, 16, sizes, 0.0, 0.03, 0.04)
    families = [[one.p_difference() for one in found[place::repeats]] for place in range(repeats)]
    alarms = sum(min(statistics.holm(family)) < 0.05 for family in families)
    assert alarms / repeats <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / repeats)


def test_interval_and_p_value_agree_and_few_equal_clusters_are_told_from_many() -> None:
    for seeds, sizes in ((1, UNEQUAL), (3, SPIDER), (16, ONE_LARGE), (8, [200])):
        for one in estimates(20, seeds, sizes, 0.1, 0.03, 0.04):
            edge = one.doubt(0.025)
            assert 2 * one.error(edge) == pytest.approx(0.05, rel=1e-6)
            assert (one.low, one.high) == (max(one.mean - edge, -1), min(one.mean + edge, 1))
            assert one.error(edge) < one.error(edge / 2) < 0.5 and one.error(3 * edge) > 0
            assert (one.p_difference() < 0.05) == (one.low > 0 or one.high < 0)
    counts = [
        estimates(1, 2, sizes, 0, 0, 0)[0].equal_clusters
        for sizes in ([9], EQUAL, SPIDER, ONE_LARGE)
    ]
    assert counts == [
        1,
        pytest.approx(6),
        pytest.approx(11.02, abs=0.01),
        pytest.approx(2.0, abs=0.01),
    ]


def test_one_very_large_cluster_hides_no_variance() -> None:
    """If clusters are all that varies, the variance of the mean is the sum of squared shares, whatever the shares."""
    generator, sizes = np.random.default_rng(4), np.array(ONE_LARGE)
    group, share = np.repeat(np.arange(len(sizes)), sizes), sizes / sizes.sum()
    found = [
        cluster_variance(generator.normal(size=len(sizes))[group], group)[0] for _ in range(4000)
    ]
    assert np.mean(found) == pytest.approx((share**2).sum(), rel=0.08)


@pytest.mark.parametrize("seeds", [3, 5, 8, 10, 14, 15, 17, 20, 24, 30, 40])
def test_collapses_are_not_taken_for_equivalence(seeds: int) -> None:
    """One training in five loses 25 points, so the true difference is at the margin; exact, by number of collapses."""
    from scipy import stats

    proved = covered = 0.0
    for collapsed in range(seeds + 1):
        values = np.zeros((seeds, 4, 5))
        values[:collapsed] = -0.25 * np.array([1, 1, 0.9, 1.1])[:, None]
        found = crossed_mean(frame(values))
        assert found is not None
        chance = float(stats.binom.pmf(collapsed, seeds, 0.2))
        proved += chance * (verdict(1.0, found.p_equivalence(0.05), seeds) == "equivalent")
        low, high = found.with_collapses() if chance > 1e-3 else (-1, 1)
        covered += chance * (low <= -0.05 <= high)
    assert proved <= 0.05 and covered >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 8, 14])
def test_collapses_of_both_arms_raise_no_alarm(seeds: int) -> None:
    """Right answers near 100 %; one training in five loses 25 points, whichever the arm."""
    generator, repeats, alarms = np.random.default_rng(seeds), 400, 0
    for _ in range(repeats):
        level = 0.99 - 0.25 * (generator.random((2, seeds, 1, 1)) < 0.2)
        first, second = (generator.random((2, seeds, 6, 20)) < level).astype(float)
        found = crossed_mean(frame(first - second))
        assert found is not None
        alarms += found.p_difference() < 0.05
    assert alarms / repeats <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("level", [0.98, 0.6])
def test_intervals_of_accuracy_cover_and_hold_their_mean(level: float, graded: bool) -> None:
    """Eight seeds, databases of unequal size and difficulty, near the ceiling and away from it."""
    generator, repeats, covered = np.random.default_rng(int(100 * level)), 300, 0
    database = np.repeat(np.arange(len(UNEQUAL)), UNEQUAL)
    seed, task = np.indices((8, len(database))).reshape(2, -1)
    rows = pl.DataFrame({"seed": seed, "cluster": database[task], "task_id": task, "value": 0.0})
    centre = math.log(level / (1 - level))
    true = float(
        (1 / (1 + np.exp(-centre - generator.normal(0, math.hypot(0.5, 0.3), 400_000)))).mean()
    )
    for _ in range(repeats):
        odds = (
            centre
            + generator.normal(0, 0.5, len(UNEQUAL))[database]
            + generator.normal(0, 0.3, (8, 1))
        )
        share = 1 / (1 + np.exp(-odds))
        values = (
            generator.beta(4 * share, 4 - 4 * share)
            if graded
            else (generator.random(share.shape) < share) * 1.0
        )
        found = accuracy(rows.with_columns(value=values.ravel()))
        assert found is not None and 0 <= found.low <= found.mean <= found.high <= 1
        covered += found.low <= true <= found.high
    assert covered / repeats >= 0.93 - 2.6 * math.sqrt(0.05 * 0.95 / repeats)


def skewed(generator: np.random.Generator, odds: np.ndarray) -> np.ndarray:
    """Graded rewards of which three in four are 0 or 1, and the others between."""
    share = 1 / (1 + np.exp(-odds))
    between = generator.beta(1 + 2 * share, 3 - 2 * share)
    return np.where(
        generator.random(share.shape) < 0.25, between, generator.random(share.shape) < share
    )


@pytest.mark.slow
@pytest.mark.parametrize("centre", [0.0, 3.0])
@pytest.mark.parametrize(
    ("seeds", "sizes"), [(1, UNEQUAL), (1, SPIDER), (2, UNEQUAL), (3, SPIDER), (8, UNEQUAL)]
)
def test_skewed_graded_rewards_raise_no_false_alarms_and_intervals_cover(
    seeds: int, sizes: list[int], centre: float
) -> None:
    """Few seeds, clusters of unequal size and difficulty, rewards from -1 to 4; in the middle and near the ceiling."""
    generator, repeats = np.random.default_rng([seeds, len(sizes), int(centre)]), 300
    by_seed = 0.3 if seeds > 1 else 0.0
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    seed, task = np.indices((seeds, len(cluster))).reshape(2, -1)
    rows = pl.DataFrame({"seed": seed, "cluster": cluster[task], "task_id": task, "value": 0.0})

    def drawn(level: np.ndarray) -> np.ndarray:
        each = (
            level
            + generator.normal(0, 0.25, len(sizes))[cluster]
            + generator.normal(0, by_seed, (seeds, 1))
        )
        return 5 * skewed(generator, each) - 1

    spread = math.hypot(0.5, 0.25, by_seed)
    true = float(5 * skewed(generator, centre + generator.normal(0, spread, 1_000_000)).mean() - 1)
    alarms = within = covered = 0
    for _ in range(repeats):
        level = centre + generator.normal(0, 0.5, len(sizes))[cluster]
        first, second = drawn(level), drawn(level)
        apart = crossed_mean(rows.with_columns(value=(first - second).ravel()), width=5.0)
        found = accuracy(rows.with_columns(value=first.ravel()), (-1.0, 4.0))
        assert (
            apart is not None
            and found is not None
            and -1 <= found.low <= found.mean <= found.high <= 4
        )
        alarms += apart.p_difference() < 0.05
        within += apart.low <= 0 <= apart.high
        covered += found.low <= true <= found.high
    noise = 2.6 * math.sqrt(0.05 * 0.95 / repeats)
    assert alarms / repeats <= 0.05 + noise
    assert within / repeats >= 0.94 - noise and covered / repeats >= 0.94 - noise


@pytest.mark.parametrize("shape", [(1, 3, 10), (9, 3, 10), (9, 1, 30)])
@pytest.mark.parametrize("equal", [False, True])
def test_a_wider_range_changes_the_unit_only(shape: tuple[int, int, int], equal: bool) -> None:
    values = np.zeros(shape) if equal else np.random.default_rng(0).beta(0.4, 0.3, shape)
    one, ten = (
        crossed_mean(frame(values - 0.4 * (not equal))),
        crossed_mean(frame(10 * values - 4 * (not equal)), 10.0),
    )
    assert one is not None and ten is not None
    assert (ten.low, ten.high) == pytest.approx((10 * one.low, 10 * one.high))
    assert ten.p_difference() == pytest.approx(one.p_difference())
    assert ten.p_equivalence(1.5) == pytest.approx(one.p_equivalence(0.15))
    assert ten.with_collapses() == pytest.approx(
        tuple(10 * end for end in one.with_collapses()), abs=1e-4
    )
    level, wide = accuracy(frame(values)), accuracy(frame(10 * values - 5), (-5.0, 5.0))
    assert level is not None and wide is not None
    assert (wide.low, wide.high) == pytest.approx((10 * level.low - 5, 10 * level.high - 5))


def test_an_evaluation_and_a_comparison_give_one_interval_and_graded_rewards_are_in_it() -> None:
    from harness.training.evaluation import accuracy_of

    rewards = [0.5, 0.6, 0.4, 0.5, 0.7, 0.3] * 5
    rows = [
        {
            "cluster": f"d{i % 3}",
            "task_id": f"t{i}",
            "reward": one,
            "outcome": "ok",
            "difficulty": "",
            "reward_flags": [],
        }
        for i, one in enumerate(rewards)
    ]
    found = accuracy_of(rows, 30)
    low, high = found["interval_95"]
    assert 0 <= low <= found["accuracy"] <= high <= 1 and found["accuracy"] == pytest.approx(0.5)
    table = pl.DataFrame(rows).rename({"reward": "value"}).with_columns(seed=0)
    one = accuracy(table)
    assert one is not None and (low, high) == (round(one.low, 4), round(one.high, 4))
    lost = accuracy_of(
        [
            *rows[:-2],
            {**rows[-1], "reward": 0.0, "outcome": "timeout", "reward_reason": "timeout: late"},
        ],
        30,
    )
    assert lost["agent_failed"] == lost["unscored"] == 1
    assert lost["bounds"] == pytest.approx([sum(rewards[:-2]) / 30, (sum(rewards[:-2]) + 1) / 30])
    assert accuracy_of([], 30)["interval_95"] is None and accuracy_of([], 30)["accuracy"] is None
