"""What a study's plan says of tokens, GPU hours and money."""

from __future__ import annotations

from harness.compare.costs import Price
from harness.config import load_config
from harness_study.costs import cost_text, planned_cost, published
from harness_study.timing import Timing, timing_for


def test_published_records_give_an_estimate_before_a_first_run() -> None:
    known = published()
    config = load_config("cpu", None, [], agent="reference_sql")
    timing = timing_for(config, known)
    assert timing is not None
    cost = planned_cost([(config, timing, 20)], of_published=True)
    assert cost is not None and cost["trainings"] == 1 and cost["gpu_hours"] is None
    assert cost["prompt_tokens"] > cost["response_tokens"] > 0
    twice = planned_cost([(config, timing, 20), (config, timing, 20)], of_published=True)
    assert twice is not None
    assert abs(twice["prompt_tokens"] - 2 * cost["prompt_tokens"]) <= 1
    text = cost_text(cost, None)
    assert f"by the published record {timing.source}: " in text and "price" not in text
    assert ", price " in cost_text(cost, Price(1.0, 2.0))


def test_a_gpu_is_counted_in_hours_of_all_cards() -> None:
    known = published()
    config = load_config("cpu", None, [], agent="reference_sql")
    timing = timing_for(config, known)
    assert timing is not None
    hourly = Timing(0.0, 3600.0, timing.source, timing.path)
    config.device, config.gpus = "cuda", 2
    cost = planned_cost([(config, hourly, 3)], of_published=False)
    assert cost is not None and cost["gpu_hours"] == 6.0
    assert "6 GPU-hours" in cost_text(cost, None)
