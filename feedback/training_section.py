"""The `training:` section of the agent file: every setting of the conservative update, with its unit, bounds and default.

Defaults come from algorithms.md 9.10 and design.md 13; a value outside its bounds is refused when the file is read.
"""

from typing import Literal

from pydantic import Field

from feedback.section import Section


class TurnCreditSettings(Section):
    """Turn-level GAE and how advantages are scaled."""

    gamma: float = Field(default=0.99, gt=0, le=1, description="discount per turn")
    lam: float = Field(
        default=0.9, ge=0, le=1, description="GAE lambda of the actor once the critic is trusted"
    )
    adv_norm: Literal["std", "mean_std"] = Field(
        default="std",
        description="std divides by the running scale; mean_std also subtracts the batch's mean, which hides a worse batch",
    )
    adv_clip: float = Field(
        default=3.0, gt=0, description="advantages are clipped to +- this many running stds"
    )
    reward_clip: float = Field(default=1.5, gt=0, description="bound of a turn's summed channels")


class Ppo(Section):
    """Decoupled PPO with dual clip. `turn_geo` clips each turn's geometric mean ratio instead of each token's."""

    ratio_level: Literal["token", "turn_geo"] = "token"
    turn_clip_low: float = Field(default=3e-3, gt=0, lt=1, description="in place of clip_low for turn_geo")
    turn_clip_high: float = Field(default=4e-3, gt=0, description="in place of clip_high for turn_geo")
    entropy: float = Field(default=0.0, ge=0, description="coefficient of the entropy bonus")
    entropy_decay: float = Field(
        default=1.0, gt=0, le=1, description="factor of the coefficient per accepted update"
    )
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float = Field(default=3.0, gt=1)
    epochs: int = Field(default=1, ge=1, le=10)
    minibatches: int = Field(default=4, ge=1, le=4)
    tis_cap: float = Field(
        default=2.0, ge=1, description="cap C of the truncated importance weight pi_old/mu"
    )


class KlReference(Section):
    """Adaptive k2 loss to the reference adapter; KLs in nats per token."""

    beta: float = Field(default=0.02, ge=0)
    beta_min: float = Field(default=0.005, ge=0)
    beta_max: float = Field(default=0.1, ge=0)
    target: float = Field(default=0.015, gt=0)
    hard: float = Field(default=0.08, gt=0, description="an update that measures more is refused")
    horizon: int = Field(default=150, ge=1)


class Trust(Section):
    """The measured trust region; every bound is checked on the finished update."""

    k3_old_target: float = Field(default=5e-4, gt=0)
    k3_old_stop: float = Field(default=1e-3, gt=0, description="stops the epoch")
    k3_old_refuse: float = Field(default=2e-3, gt=0, description="refuses the update")
    m2_refuse: float = Field(default=0.04, gt=0)
    turn_kl_refuse: float = Field(
        default=0.10, gt=0, description="mean over turns of the KL summed over a turn, nats"
    )
    big_move_share: float = Field(default=0.01, gt=0, description="share of tokens with |dlogp| > ln 2")
    k3_mu_refuse: float = Field(default=0.02, gt=0)
    ess_min: float = Field(default=0.5, gt=0, le=1)
    clip_fraction_stop: float = Field(default=0.2, gt=0, le=1)
    backtrack: tuple[float, ...] = (1.0, 0.5, 0.25)
    gold_drop: float | None = Field(
        default=None,
        ge=0,
        description="refuse when the gold judge surely likes the new policy less by this many stds; null measures only",
    )
    probe_drop: float | None = Field(
        default=None,
        ge=0,
        description="refuse when perplexity on the probe surely rose by more than this share; null measures only",
    )
    refusals_pause: int = Field(default=6, ge=1)
    pause_retry_s: float = Field(default=1800, ge=0)


class Staleness(Section):
    """What is too old for the policy; it still trains the reward model and the critic."""

    max_lag: int = Field(default=4, ge=0, description="offered versions")
    max_update_lag: int = Field(default=16, ge=0)
    max_age_s: float = Field(default=48 * 3600, gt=0)
    abandoned_nats: float = Field(
        default=2.0, gt=0, description="a turn whose sum max(0, log pi_old - log mu) exceeds this is dropped"
    )


class LoraSettings(Section):
    """The adapter. dropout is 0 and bias none: vLLM serves nothing else."""

    r: int = Field(default=16, ge=1, le=512)
    alpha: int = Field(default=32, ge=1)
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Optimizer(Section):
    """AdamW without weight decay; `lr: auto` follows the measured KL (design 13)."""

    lr: float | Literal["auto"] = "auto"
    lr_start: float = Field(default=1e-5, gt=0)
    lr_min: float = Field(default=1e-6, gt=0)
    lr_max: float = Field(default=3e-3, gt=0)
    grad_norm: float = Field(default=1.0, gt=0)


class BatchSettings(Section):
    """When there is enough to learn from, and how much one person may weigh."""

    min_episodes: int = Field(default=48, ge=1)
    max_episodes: int = Field(default=64, ge=1)
    max_waiting: int = Field(
        default=1024, ge=1, description="episodes that may wait; beyond them those of least use go untrained"
    )
    min_rated: int = Field(default=20, ge=0)
    min_users: int = Field(default=12, ge=1)
    max_rater_share: float = Field(default=0.10, gt=0, le=1)
    max_episode_share: float = Field(default=0.10, gt=0, le=1)
    single_user: bool = False


class ProxMO(Section):
    """How an episode is compared with others by `credit: proxmo` (and `groups`: `omega` alone), never with itself."""

    omega: float = Field(default=1.0, ge=0, description="weight of a turn's part beside the episode's")
    psc_alpha: float = Field(default=4.0, gt=0, description="how steeply rarity weighs")
    psc_max: float = Field(
        default=0.05, ge=0, lt=1, description="a success where all fail weighs 1 + this, a failure 1 - this"
    )
    psa_tau: float = Field(default=0.1, gt=0, description="temperature of the similarity of states")
    turns: int = Field(default=4096, ge=1, description="newest turns of the replay to compare with")


class CriticSettings(Section):
    """Asymmetric V-critic over the reference's frozen hidden states."""

    fallback: Literal["turn_index", "proximity"] = Field(
        default="turn_index", description="baseline from the replay while the critic is weak"
    )

    lr: float = Field(default=1e-3, gt=0)
    hidden: int = Field(default=256, ge=8)
    polyak: float = Field(default=0.005, gt=0, le=1)
    steps_per_update: int = Field(default=8, ge=0)
    pretrain_steps: int = Field(default=200, ge=0)
    replay: int = Field(default=100_000, ge=1, description="turns")
    ev_turns: int = Field(default=300, ge=1, description="turns before explained variance may be trusted")
    ev_full: float = Field(default=0.3, gt=0, le=1)


class RewardModelSettings(Section):
    """Ensemble over the reference's frozen hidden states."""

    members: int = Field(default=4, ge=2)
    lr: float = Field(default=1e-3, gt=0)
    hidden: int = Field(default=128, ge=8)
    kappa: float = Field(default=1.0, ge=0, description="how many stds the spread takes off")
    min_labels: int = Field(default=60, ge=1)
    agreement: float = Field(
        default=0.62,
        ge=0.5,
        le=1,
        description="held-out agreement with thumbs before unrated answers are priced",
    )
    holdout_raters: float = Field(
        default=0.2, gt=0, lt=1, description="share of raters only the gold member learns from"
    )


class Training(Section):
    """Everything the trainer is told."""

    credit: Literal["gae", "monte_carlo", "proxmo", "groups"] = "gae"
    turn: TurnCreditSettings = TurnCreditSettings()
    proxmo: ProxMO = ProxMO()
    ppo: Ppo = Ppo()
    kl_reference: KlReference = KlReference()
    trust: Trust = Trust()
    staleness: Staleness = Staleness()
    lora: LoraSettings = LoraSettings()
    optimizer: Optimizer = Optimizer()
    batch: BatchSettings = BatchSettings()
    critic: CriticSettings = CriticSettings()
    reward_model: RewardModelSettings = RewardModelSettings()
    token_budget: int = Field(
        default=4096, ge=64, description="padded tokens of one forward pass: bounds peak memory"
    )
