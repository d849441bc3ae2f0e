"""Differences between the rollout's and the trainer's probabilities of sampled tokens."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("verl")

import torch

from harness_verl.probability_gaps import MOST_LOGGED, gap_metrics


def nested(rows: list[list[float]], kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor(
        [torch.tensor(row, dtype=kind) for row in rows], layout=torch.jagged
    )


def micro_batch(theirs: list[list[float]]) -> dict[str, Any]:
    """Return two rows: a prompt of 3 tokens with a reply of 3, one of 1 with a reply of 2.

    The last token of the second reply is not trained.
    """
    return {
        "input_ids": nested([[1, 2, 3, 10, 11, 12], [4, 20, 21]], torch.int64),
        "old_log_probs": nested(theirs).log(),
        "response_mask": nested([[1, 1, 1], [1, 0]]),
    }


OURS = torch.tensor([[0.9, 0.002, 0.7], [0.3, 0.5, 0.0]]).log()


def test_the_largest_and_the_mean_difference_of_trained_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = gap_metrics(OURS, micro_batch([[0.9, 0.102, 0.7], [0.2, 1.0]]))
    assert found["actor/rollout_probs_diff_max"].aggregate() == pytest.approx(0.1)
    assert found["actor/rollout_probs_diff_mean"].aggregate() == pytest.approx(0.05)
    assert not caplog.records


def test_a_large_difference_is_logged_with_its_token_and_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = gap_metrics(OURS, micro_batch([[0.9, 1.0, 0.7], [0.3, 1.0]]))
    assert found["actor/rollout_probs_diff_max"].aggregate() == pytest.approx(0.998)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "token 11 has probability 1.0000 in the rollout and 0.0020 in the trainer: number 2 of 3 "
        "after a prompt of 3 tokens."
    )
    assert line.endswith("Before it: [1, 2, 3, 10]. After it: [12]")


def test_what_is_not_a_number_is_logged_if_it_is_trained(caplog: pytest.LogCaptureFixture) -> None:
    ours = OURS.clone()
    ours[1, 1] = torch.nan  # of the token that is not trained
    gap_metrics(ours, micro_batch([[0.9, 0.002, 0.7], [0.3, 1.0]]))
    assert not caplog.records
    ours[1, 0] = torch.nan
    gap_metrics(ours, micro_batch([[0.9, 0.002, 0.7], [0.3, 1.0]]))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("token 20 has probability 0.3000 in the rollout and nan in the trainer")


def test_a_pass_logs_a_few_tokens_only(caplog: pytest.LogCaptureFixture) -> None:
    rows = 2 * MOST_LOGGED
    many = {
        "input_ids": nested([[1, 2]] * rows, torch.int64),
        "old_log_probs": nested([[1.0]] * rows).log(),
        "response_mask": nested([[1]] * rows),
    }
    gap_metrics(torch.full((rows, 1), 0.1).log(), many)
    assert len(caplog.records) == MOST_LOGGED


def test_a_pass_of_masked_rows_has_no_difference() -> None:
    masked = {
        "input_ids": nested([[1, 2]], torch.int64),
        "old_log_probs": nested([[1.0]]).log(),
        "response_mask": nested([[0]]),
    }
    found = gap_metrics(torch.zeros(1, 1) - 5, masked)
    assert found["actor/rollout_probs_diff_max"].aggregate() == 0
