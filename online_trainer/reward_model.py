"""The reward model: an ensemble over the reference's frozen hidden states that learns what raters would say.

Invariant: member k never learns from the raters of quarter k, and no member but the gold one from the gold raters; so
agreement is measured on people the judge has not met, and gold stays a test that the policy is never trained on.
Shapes: N labelled answers, K members (the gold one last), F features; a score is a log-odds of thumbs up.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feedback.training_section import RewardModelSettings
from online_trainer.heads import Heads
from online_trainer.pessimism import lower_bound, preference_reward

RATER_SLOTS = 4096
WEIGHT_DECAY = 0.1
BIAS_DECAY = 1.0
GOLD = -1


def bradley_terry(
    better_N: Tensor, worse_N: Tensor, *, margin: float = 0.0, smoothing: float = 0.0
) -> Tensor:
    """-log sigma(r_w - r_l - m) per pair; smoothing s mixes in the reverse pair, with its minimum at log((1-s)/s)."""
    gap_N = better_N - worse_N - margin
    forward_N = nn.functional.softplus(-gap_N)
    return (1.0 - smoothing) * forward_N + smoothing * nn.functional.softplus(gap_N)


def thumbs_loss(score_N: Tensor, bias_N: Tensor, up_N: Tensor) -> Tensor:
    """-log P(thumb) with P(up) = sigma(r + b_rater); the bias absorbs harsh and lenient raters."""
    return nn.functional.binary_cross_entropy_with_logits(score_N + bias_N, up_N, reduction="none")


def seat_of(rater: str, *, members: int, gold_share: float) -> int:
    """GOLD for the raters kept from every ordinary member, else the quarter (of `members`) the rater sits in."""
    digest = hashlib.sha256(rater.encode()).digest()
    if int.from_bytes(digest[:4]) < gold_share * 2**32:
        return GOLD
    return int.from_bytes(digest[4:8]) % members


def slot_of(rater: str) -> int:
    """Where a rater's bias is kept. Two raters that share a slot share a bias, which is harmless."""
    return int.from_bytes(hashlib.sha256(rater.encode()).digest()[8:12]) % RATER_SLOTS


@dataclass(frozen=True)
class Labels:
    """Thumbs on answers: the hidden state of each answer's last token, who rated, and up (1) or down (0)."""

    feature_NF: Tensor
    raters: tuple[str, ...]
    up_N: Tensor

    def __len__(self) -> int:
        return len(self.raters)

    def taken(self, rows: Tensor) -> "Labels":
        """Some of them."""
        raters = tuple(self.raters[at] for at in rows.tolist())
        return Labels(self.feature_NF[rows], raters, self.up_N[rows])


@dataclass(frozen=True)
class Pairs:
    """Comparisons and corrections: of each the better and the worse answer, and who said so."""

    better_NF: Tensor
    worse_NF: Tensor
    raters: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.raters)

    def taken(self, rows: Tensor) -> "Pairs":
        """Some of them."""
        raters = tuple(self.raters[at] for at in rows.tolist())
        return Pairs(self.better_NF[rows], self.worse_NF[rows], raters)


@dataclass(frozen=True)
class Trial:
    """How the ordinary members did on raters they had not met: on thumbs, and on the pairs these people compared."""

    agreement: float
    labels: int
    temperature: float
    pairs: int = 0
    pair_agreement: float = 0.5
    gold_agreement: float = 0.5

    def passes(self, settings: RewardModelSettings) -> bool:
        """Whether answers nobody rated may be priced."""
        return self.labels >= settings.min_labels and self.agreement >= settings.agreement

    def trusts_gold(self, settings: RewardModelSettings) -> bool:
        """Whether the gold member knows enough to judge an update."""
        return self.labels >= settings.min_labels and self.gold_agreement >= settings.agreement


class RewardModel:
    """The ensemble and its optimizer. It is trained anew before each update, so no checkpoint holds it."""

    def __init__(self, features: int, *, settings: RewardModelSettings, seed: int) -> None:
        self._settings = settings
        self._generator = torch.Generator().manual_seed(seed)
        self.heads = Heads(
            settings.members + 1, features, units=settings.hidden, start=0.1, generator=self._generator
        )
        self.rater_bias_KR = nn.Parameter(torch.zeros(settings.members + 1, RATER_SLOTS))
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self.heads.parameters()), "weight_decay": WEIGHT_DECAY},
                {"params": [self.rater_bias_KR], "weight_decay": BIAS_DECAY},
            ],
            lr=settings.lr,
        )

    def learn(self, labels: Labels) -> float:
        """One step on a minibatch of thumbs; returns the loss before it. One that is not finite changes nothing."""
        score_KN = self.heads(labels.feature_NF, self._generator)
        allowed_KN = self._allowed(labels.raters)
        slots_N = torch.tensor([slot_of(r) for r in labels.raters])
        loss_KN = thumbs_loss(
            score_KN, self.rater_bias_KR[:, slots_N], labels.up_N.float().expand_as(score_KN)
        )
        return self._step((loss_KN * allowed_KN).sum() / allowed_KN.sum().clamp(min=1))

    def learn_pairs(self, pairs: Pairs) -> float:
        """One Bradley-Terry step on comparisons and corrections."""
        allowed_KN = self._allowed(pairs.raters)
        loss_KN = bradley_terry(
            self.heads(pairs.better_NF, self._generator), self.heads(pairs.worse_NF, self._generator)
        )
        return self._step((loss_KN * allowed_KN).sum() / allowed_KN.sum().clamp(min=1))

    @torch.no_grad()
    def scores(self, feature_NF: Tensor) -> Tensor:
        """score_KN of the ordinary members, for a rater of average strictness."""
        score_KN: Tensor = self.heads(feature_NF)[:-1]
        return score_KN

    @torch.no_grad()
    def gold(self, feature_NF: Tensor) -> Tensor:
        """score_N of the gold member."""
        score_N: Tensor = self.heads(feature_NF)[-1]
        return score_N

    @torch.no_grad()
    def trial(self, labels: Labels) -> Trial:
        """Held-out test: each rater of quarter k is predicted by member k, which never learned from that quarter.

        Gold raters are left out: they are kept to judge policies.
        """
        seats = self._seats(labels.raters)
        rows = [i for i, seat in enumerate(seats) if seat != GOLD]
        if not rows:
            return Trial(0.5, 0, 1.0)
        score_KN = self.scores(labels.feature_NF)
        score_N = torch.stack([score_KN[seats[i], i] for i in rows])
        up_N = labels.up_N[rows].float()
        return Trial(balanced_agreement(score_N, up_N), len(rows), calibrate(score_N, up_N))

    @torch.no_grad()
    def gold_trial(self, labels: Labels) -> float:
        """Agreement of the gold member with raters it never heard: all but the gold ones."""
        rows = [i for i, seat in enumerate(self._seats(labels.raters)) if seat != GOLD]
        return balanced_agreement(self.gold(labels.feature_NF[rows]), labels.up_N[rows]) if rows else 0.5

    @torch.no_grad()
    def pair_trial(self, pairs: Pairs) -> float:
        """Share of pairs that the member who never learned from their rater puts in the right order; .5 without any."""
        seats = self._seats(pairs.raters)
        rows = [i for i, seat in enumerate(seats) if seat != GOLD]
        if not rows:
            return 0.5
        gap_KN = self.scores(pairs.better_NF) - self.scores(pairs.worse_NF)
        return sum(float(gap_KN[seats[i], i] > 0) for i in rows) / len(rows)

    def _step(self, loss: Tensor) -> float:
        if not bool(torch.isfinite(loss)):
            return float(loss.detach())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([*self.heads.parameters(), self.rater_bias_KR], 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def _seats(self, raters: Sequence[str]) -> list[int]:
        settings = self._settings
        return [seat_of(r, members=settings.members, gold_share=settings.holdout_raters) for r in raters]

    def _allowed(self, raters: Sequence[str]) -> Tensor:
        """allowed_KN: whether member k may learn from rater n. The gold member learns from gold raters alone."""
        seat_N = torch.tensor(self._seats(raters))
        member_K = torch.arange(self._settings.members)[:, None]
        ordinary_KN = (seat_N != GOLD) & (seat_N != member_K)
        return torch.cat([ordinary_KN, (seat_N == GOLD)[None]])


def balanced_agreement(score_N: Tensor, up_N: Tensor) -> float:
    """Mean of the shares of ups and of downs that fall on the right side of the scores' own base rate.

    Balanced, so that a judge who always says what most people say scores one half. 0.5 where one kind is missing.
    """
    up = up_N > 0.5
    if not bool(up.any()) or bool(up.all()):
        return 0.5
    said_up_N = score_N > score_N.quantile(1.0 - float(up.float().mean()))
    return 0.5 * float(said_up_N[up].float().mean() + (~said_up_N[~up]).float().mean())


def calibrate(score_N: Tensor, up_N: Tensor) -> float:
    """T_rm: the temperature in [1, 16] that makes sigma((r - c) / T + base rate) fit held-out thumbs best.

    Never below 1: an ensemble that is surer than its evidence is cooled, not sharpened.
    """
    rate = float(up_N.mean().clamp(0.02, 0.98))
    base = torch.logit(torch.tensor(rate))
    centred_N = score_N - score_N.mean()
    grid = [float(2.0 ** (i / 4)) for i in range(17)]
    losses = [float(thumbs_loss(centred_N / t, base.expand_as(centred_N), up_N).mean()) for t in grid]
    return min(zip(losses, grid, strict=True))[1]


@dataclass(frozen=True)
class Centre:
    """Where the pessimistic score usually lies and how it varies between answers. Checkpoint all three."""

    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    @property
    def signal(self) -> float:
        """Variance between answers of the pessimistic score."""
        return max(0.0, self.square - self.mean**2)

    def after(self, score_KN: Tensor, *, kappa: float) -> "Centre":
        """With one more batch; older ones keep nine tenths of their weight."""
        bound_N = lower_bound(score_KN, kappa=kappa)
        old, new = 0.9 * self.weight, float(bound_N.numel())
        if new == 0.0 or not bool(torch.isfinite(bound_N).all()):
            return self
        total = old + new
        return Centre(
            (old * self.mean + new * float(bound_N.mean())) / total,
            (old * self.square + new * float(bound_N.square().mean())) / total,
            total,
        )


def price(score_KN: Tensor, centre: Centre, *, temperature: float, kappa: float) -> Tensor:
    """rho_N in (-1, 1): 2 sigma((mean - kappa std - centre) / T) - 1, drawn to 0 where the members disagree.

    The draw is signal / (signal + std^2): the share of a score's variance that is about the answer. So doubt makes an
    answer neutral rather than bad, whichever side it was on.
    """
    spread_N = score_KN.std(0, correction=1)
    reliability_N = centre.signal / (centre.signal + spread_N.square()).clamp(min=1e-12)
    bound_N = lower_bound(score_KN, kappa=kappa)
    return reliability_N * preference_reward(bound_N, centre.mean, temperature=temperature)
