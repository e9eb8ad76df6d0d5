"""How fast and how many at once: the rate of each name, and the seats of each name. The time is an argument.

State is bounded: a name that used nothing of its allowance is forgotten, and it loses nothing by that.
"""

from collections import Counter, OrderedDict

_NAMES = 65_536


class Pace:
    """The generic cell rate algorithm (ITU-T I.371): `rate` a second for each name, up to `burst` at once.

    Of each name one number is kept: when its allowance would be whole again.
    """

    def __init__(self, rate: float, burst: int, *, names: int = _NAMES) -> None:
        self._interval = 1 / rate if rate > 0 else 0.0  # 0: no limit
        self._tolerance = burst * self._interval
        self._whole_at: OrderedDict[str, float] = OrderedDict()
        self._names = names

    def wait(self, name: str, now: float) -> float:
        """0 and it is counted, or the seconds until it may come again. `now` is a monotonic time (s)."""
        if not self._interval:
            return 0.0
        whole_at = max(self._whole_at.get(name, now), now) + self._interval
        early = whole_at - self._tolerance - now
        if early > 1e-9:
            return early
        self._whole_at[name] = whole_at
        self._whole_at.move_to_end(name)
        if len(self._whole_at) > self._names:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Those with a whole allowance, else those who came longest ago."""
        for name in [name for name, whole_at in self._whole_at.items() if whole_at <= now]:
            del self._whole_at[name]
        while len(self._whole_at) > self._names // 2:
            self._whole_at.popitem(last=False)


class Seats:
    """How many of each name may be inside at once."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._taken: Counter[str] = Counter()

    def take(self, name: str) -> bool:
        """Whether there was a seat; it must be given back."""
        if self._taken[name] >= self._each:
            return False
        self._taken[name] += 1
        return True

    def give_back(self, name: str) -> None:
        """Leave; a name without anybody inside is forgotten."""
        self._taken[name] -= 1
        if self._taken[name] <= 0:
            del self._taken[name]
