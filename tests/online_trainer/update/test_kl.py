"""T5 and T10 of algorithms.md, and the trap that estimators meet on tokens of another policy."""

import math

import pytest
import torch
from torch import Tensor

from feedback.training_section import KlReference
from online_trainer.update import kl

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)


def test_t5_exact_values() -> None:
    assert float(kl.exact_kl(P.log(), Q.log())) == pytest.approx(0.025267154, abs=1e-9)
    assert float(kl.exact_kl(Q.log(), P.log())) == pytest.approx(0.025815408, abs=1e-9)
    assert float(kl.exact_kl(P.log() + 3.0, Q.log() - 5.0)) == pytest.approx(0.025267154, abs=1e-9)


@pytest.mark.parametrize(
    ("estimator", "mean", "variance"),
    [(kl.k1, 0.025267154, 0.049086), (kl.k2, 0.024862407, 0.000205), (kl.k3, 0.025267154, 0.000255)],
)
def test_t5_estimators_under_p(estimator: object, mean: float, variance: float) -> None:
    value = estimator(P.log(), Q.log())  # type: ignore[operator]
    expectation = float((P * value).sum())
    assert expectation == pytest.approx(mean, abs=1e-9)
    assert float((P * value.square()).sum()) - expectation**2 == pytest.approx(variance, abs=1e-6)


def as_loss(estimator: object) -> list[float]:
    """Expected gradient on the logits of p when the estimator is differentiated on p's own samples."""
    logits = P.log().requires_grad_()
    value = estimator(torch.log_softmax(logits, -1), Q.log())  # type: ignore[operator]
    (P * value).sum().backward()
    return logits.grad.tolist()


def test_t5_what_each_does_as_a_loss() -> None:
    reverse = [0.098938199, -0.093884768, -0.005053431]
    assert as_loss(kl.k2) == pytest.approx(reverse, abs=1e-9)
    assert as_loss(kl.k3) == pytest.approx([0.1, -0.1, 0.0], abs=1e-9)
    assert as_loss(kl.k1) == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    logits = P.log().requires_grad_()
    kl.exact_kl(logits, Q.log()).backward()
    assert logits.grad.tolist() == pytest.approx(reverse, abs=1e-9)
    forward = P.log().requires_grad_()
    kl.exact_kl(Q.log(), forward).backward()
    assert forward.grad.tolist() == pytest.approx([0.1, -0.1, 0.0], abs=1e-9)


@pytest.mark.parametrize(
    ("log_ratio", "expected"),
    [(0.1, 0.004837418), (-0.1, 0.005170918), (1.0, 0.367879441), (-1.0, 0.718281828)],
)
def test_t5_single_tokens(log_ratio: float, expected: float) -> None:
    here, there = torch.tensor(log_ratio - 2.0, dtype=torch.float64), torch.tensor(-2.0, dtype=torch.float64)
    assert float(kl.k3(here, there)) == pytest.approx(expected, abs=1e-9)
    assert float(kl.k1(here, there)) == pytest.approx(log_ratio, abs=1e-12)
    assert float(kl.k2(here, there)) == pytest.approx(log_ratio**2 / 2, abs=1e-12)


def test_t5_signs_cancel_in_k1_and_not_in_the_second_moment() -> None:
    new, old = torch.tensor([0.5, -0.5], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert float(kl.k1(new, old).mean()) == 0.0
    assert float(kl.second_moment(new - old, torch.ones(2, dtype=torch.float64))) == pytest.approx(0.25)
    assert float(kl.k3(old, new).mean()) == pytest.approx(0.127625965, abs=1e-9)


def expected_gradient(logits: Tensor, reference: Tensor, old: Tensor, mu: Tensor) -> Tensor:
    """Exact expectation of the k2 loss's gradient over tokens that mu samples."""
    leaf = logits.clone().requires_grad_()
    new = torch.log_softmax(leaf, -1)
    mask = torch.ones(len(mu), dtype=torch.bool)
    for token, share in enumerate(mu.exp().tolist()):
        one = mask & (torch.arange(len(mu)) == token)
        (share * kl.k2_loss(new, reference, old, mu, one, tis_cap=1e9, total=1.0)).backward(retain_graph=True)
    assert leaf.grad is not None
    return leaf.grad


def test_k2_loss_on_another_policys_tokens_has_the_gradient_of_the_reverse_kl() -> None:
    mu = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    old = torch.tensor([0.45, 0.35, 0.2], dtype=torch.float64).log()
    got = expected_gradient(P.log(), Q.log(), old, mu)
    assert got.tolist() == pytest.approx([0.098938199, -0.093884768, -0.005053431], abs=1e-9)


def test_the_trap_an_unweighted_k3_explodes_on_what_the_head_gave_up() -> None:
    """A choice that the sampler took half of the time and the head hardly ever takes: k3 to the reference, averaged
    over the sampler's tokens, says many times the truth, which the exact sum gives."""
    head, reference = torch.tensor([0.01, 0.99]).log(), torch.tensor([0.5, 0.5]).log()
    mu = reference.exp()
    naive = float((mu * kl.k3(head, reference)).sum())
    truth = float(kl.exact_kl(head, reference))
    assert truth == pytest.approx(0.01 * math.log(0.02) + 0.99 * math.log(1.98), abs=1e-6)
    assert naive > 30 * truth


def test_a_token_that_p_never_takes_adds_nothing() -> None:
    certain = torch.tensor([0.0, -torch.inf])
    assert float(kl.exact_kl(certain, torch.tensor([0.5, 0.5]).log())) == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize(("measured", "beta"), [(12, 0.201024), (6, 0.2), (3, 0.198976), (6.3, 0.200256)])
def test_t10_adaptive_beta(measured: float, beta: float) -> None:
    controller = kl.AdaptiveBeta(beta=0.2, beta_min=0.0, beta_max=1.0, target=6.0, horizon=10000)
    assert controller.after(measured, 256).beta == pytest.approx(beta, abs=1e-9)


def test_beta_stays_inside_its_bounds() -> None:
    controller = kl.AdaptiveBeta.start(KlReference())
    for _ in range(200):
        controller = controller.after(1.0, 64)
    assert controller.beta == KlReference().beta_max
    for _ in range(200):
        controller = controller.after(0.0, 64)
    assert controller.beta == KlReference().beta_min
