"""Every statistic against a published or independently computed value, and simulations of the verdict's test."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from harness.compare import statistics
from harness.compare.comparison import verdict
from harness.compare.estimates import accuracy, cluster_variance, crossed_mean, detectable_effect


def frame(values: np.ndarray) -> pd.DataFrame:
    """Rows of an array [seeds, databases, tasks]."""
    seed, database, task = np.indices(values.shape).reshape(3, -1)
    return pd.DataFrame(
        {"seed": seed, "db_id": database.astype(str), "task_id": database * 10_000 + task, "value": values.ravel()}
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
    from statsmodels.stats.weightstats import DescrStatsW

    means = np.array([0.01, -0.02, 0.03, 0.0, 0.015, -0.01])
    found = crossed_mean(frame(means.reshape(1, 6, 1)))
    assert found is not None and found.unit == "database"
    assert found.p_equivalence(0.03) == pytest.approx(DescrStatsW(means).ttost_mean(-0.03, 0.03)[0])
    assert found.p_difference() == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    interval = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_several_seeds_on_one_database_are_a_paired_t_test_over_seeds() -> None:
    # Student 1908, Biometrika 6, 1-25: extra hours of sleep of ten patients under two drugs; t = 4.06, p = 0.0028.
    first = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    second = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    found = crossed_mean(frame((second - first).reshape(10, 1, 1)))
    assert found is not None and found.unit == "seed" and found.df == 9
    assert found.mean / found.se == pytest.approx(4.062, abs=5e-4)
    assert found.p_difference() == pytest.approx(0.00283, abs=5e-6)


def test_two_way_variance_is_that_of_statsmodels() -> None:
    from statsmodels.regression.linear_model import OLS

    generator = np.random.default_rng(3)
    values = generator.normal(size=(5, 8, 4)) + generator.normal(size=(5, 1, 1)) + generator.normal(size=(1, 8, 1))
    rows = frame(values)
    groups = np.column_stack([rows["seed"], rows["db_id"].astype(int)])
    fit = OLS(rows["value"].to_numpy(), np.ones((len(rows), 1))).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True}
    )
    found = crossed_mean(rows)
    assert found is not None
    assert found.se**2 == pytest.approx(float(fit.cov_params()[0, 0]), rel=1e-9)


def test_cluster_variance_of_equal_clusters_is_the_variance_of_their_means() -> None:
    values = np.array([[1.0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1]])
    found = cluster_variance(values.ravel(), np.repeat([0, 1, 2], 4))
    assert found == pytest.approx(values.mean(axis=1).var(ddof=1) / 3)


def test_detectable_effect_is_that_of_a_textbook_power_table() -> None:
    # Cohen 1988, table 2.3.5 (two-sided 0.05): n = 34 pairs find d = 0.5 with power 0.81.
    se, df = 1 / math.sqrt(34), 33
    assert detectable_effect(se, df, power=0.8078) == pytest.approx(0.5, abs=0.002)


def test_interquartile_mean_and_probability_of_improvement_by_hand() -> None:
    assert statistics.interquartile_mean([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx((2 + 3 + 4 + 5) / 4)
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
    values = generator.normal(size=(40, 1, 1)) * 0.3 + generator.normal(size=(1, 40, 1)) * 0.3 + np.zeros((40, 40, 2))
    low, high = statistics.hierarchical_bootstrap(frame(values)) or (0, 0)
    expected = 2 * 1.96 * math.sqrt(values.mean(axis=(1, 2)).var() / 40 + values.mean(axis=(0, 2)).var() / 40)
    assert high - low == pytest.approx(expected, rel=0.06)
    assert statistics.hierarchical_bootstrap(frame(np.zeros((1, 3, 2)))) is None


def test_stratified_bootstrap_interval_holds_the_estimate() -> None:
    scores = np.random.default_rng(2).uniform(size=(10, 6))
    low, high = statistics.interval_of(statistics.interquartile_mean, scores) or (0, 0)
    assert low < statistics.interquartile_mean(scores.ravel().tolist()) < high


def test_no_difference_at_all_is_equivalent_only_with_enough_questions() -> None:
    few, many = crossed_mean(frame(np.zeros((1, 2, 4)))), crossed_mean(frame(np.zeros((3, 6, 40))))
    assert few is not None and many is not None
    assert few.p_equivalence(0.05) == pytest.approx(0.95**8) and many.p_equivalence(0.05) == pytest.approx(0.95**240)
    assert few.p_difference() == many.p_difference() == 1.0
    assert many.high == pytest.approx(1 - 0.05 ** (1 / 240)) and many.detectable() is None


def gains(wins: int, losses: int, questions: int) -> list[float]:
    return [1.0] * wins + [-1.0] * losses + [0.0] * (questions - wins - losses)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[gains(20, 20, 60), gains(20, 20, 60)]]),  # one seed, two databases, both even
        np.array([[gains(3, 0, 100)], [gains(10, 7, 100)]]),  # two seeds, one database, both three ahead
        np.array([[gains(6, 3, 50), gains(3, 0, 50)], [gains(3, 0, 50), gains(6, 3, 50)]]),
    ],
)
def test_clusters_that_coincide_by_luck_are_no_certainty(values: np.ndarray) -> None:
    found = crossed_mean(frame(values))
    assert found is not None and found.df == 1
    by_question = values.mean(axis=0).ravel()
    assert found.se**2 >= by_question.var(ddof=1) / len(by_question) * (1 - 1e-9)
    assert found.low < 0 < found.high and found.high - found.mean > 0.05
    assert verdict(found.p_difference(), found.p_equivalence(0.05)) == "cannot tell"


def test_scores_that_cancel_by_question_and_by_seed_still_vary() -> None:
    found = crossed_mean(frame(np.array([[[1.0, 0.0]], [[0.0, 1.0]]])))
    assert found is not None and found.se == pytest.approx(math.sqrt(1 / 3 / 4))


def test_values_equal_up_to_rounding_are_equal() -> None:
    values = np.zeros((1, 2, 40))
    values[0, 0] = 0.1 + 0.2 - 0.3
    found = crossed_mean(frame(values))
    assert found is not None and found.se == 0 and found.p_equivalence(0.05) == pytest.approx(0.95**80)


@pytest.mark.parametrize(("seeds", "databases", "questions"), [(2, 1, 100), (1, 2, 60)])
def test_false_alarms_are_no_more_where_clusters_coincide(seeds: int, databases: int, questions: int) -> None:
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


@pytest.mark.parametrize(
    ("seeds", "databases", "by_seed", "by_database"),
    [(1, 6, 0.0, 0.05), (3, 6, 0.05, 0.0), (3, 6, 0.0, 0.0), (5, 6, 0.04, 0.04), (5, 20, 0.03, 0.03)],
)
def test_false_alarms_and_coverage_are_near_nominal(
    seeds: int, databases: int, by_seed: float, by_database: float
) -> None:
    """Paired differences of right-or-wrong answers, clustered by database, trained with few seeds."""
    generator = np.random.default_rng(seeds * 100 + databases)
    repeats, alarms, covered, effect = 200, 0, 0, 0.1
    for _ in range(repeats):
        shift = generator.normal(0, by_seed, (seeds, 1, 1)) + generator.normal(0, by_database, (1, databases, 1))
        draw = generator.random((seeds, databases, 20))
        for mean in (0.0, effect):
            up = np.clip(0.2 + (mean + shift) / 2, 0, 1)
            down = np.clip(0.2 - (mean + shift) / 2, 0, 1)
            found = crossed_mean(frame((draw < up).astype(float) - (draw > 1 - down)))
            assert found is not None
            if mean == 0:
                alarms += found.p_difference() < 0.05
            else:
                covered += found.low <= effect <= found.high
    noise = 2.6 * math.sqrt(0.05 * 0.95 / repeats)  # 99 % of a fair simulation
    assert alarms / repeats <= 0.05 + noise
    assert covered / repeats >= 0.95 - noise
