"""What every credit rule takes and gives. E episodes, H turns (padded on the right), mask True where a turn exists.

Invariant: what stands at a padded turn changes nothing, and a rule is homogeneous: scaling every reward, value and
bootstrap by c > 0 scales the advantages by c.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


class Estimate(NamedTuple):
    """Advantage of each turn and the return a critic should learn; zero at padded turns. No gradient."""

    advantage_EH: Tensor
    return_EH: Tensor


class Credit(Protocol):
    """A credit rule. `bootstrap_E` is V after the last turn: zero unless the episode was cut short."""

    def __call__(
        self, reward_EH: Tensor, value_EH: Tensor, *, mask_EH: Tensor, bootstrap_E: Tensor
    ) -> Estimate: ...
