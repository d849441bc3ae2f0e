"""Log-probabilities: the same as verl's own loop gives, in fp32 whatever the logits are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
functional = pytest.importorskip("verl.utils.torch_functional")

from harness_verl import logprobs  # noqa: E402


def both(
    dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[torch.Tensor, ...]:
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    torch.manual_seed(0)
    logits = torch.randn(37, 101, dtype=torch.float32).mul_(4).to(dtype).requires_grad_()
    labels = torch.randint(0, 101, (37,))
    found = logprobs.logprobs_from_logits(logits, labels)
    weights = torch.linspace(-1, 1, 37)
    (grad,) = torch.autograd.grad((found * weights).sum(), logits)
    exact = torch.log_softmax(logits.double(), -1)
    wanted = exact.gather(-1, labels[:, None]).squeeze(-1)
    (exact_grad,) = torch.autograd.grad((wanted * weights).sum(), logits)
    return found, wanted, grad, exact_grad


@pytest.mark.parametrize("chunk", [1, 1010, 1 << 28])
def test_values_and_gradients_are_exact_in_chunks_of_any_size(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, wanted, grad, exact_grad = both(torch.float32, chunk, monkeypatch)
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grad, exact_grad, atol=1e-6, rtol=1e-5)


def test_logits_in_bf16_lose_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found, wanted, grad, exact_grad = both(torch.bfloat16, 1 << 28, monkeypatch)
    assert found.dtype == torch.float32 and grad.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grad, exact_grad, atol=1e-3, rtol=1e-2)


def test_verl_takes_them_where_flash_attention_is_missing() -> None:
    assert functional.logprobs_from_logits_v2 is logprobs.logprobs_from_logits
