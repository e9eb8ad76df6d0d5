"""One held-out episode without a transport: ask, be answered, be judged.

Invariant: held-out users neither thank nor complain, and their tasks are never used in training.
"""

from deploy.simulation.travel import Fault, faults, truth
from deploy.simulation.world import task


class HeldoutEpisode:
    """Give `user_message()` to the agent, its final text to `reply()`, until `user_message()` is None.

    Tools must be run with this object's `episode_id`: the truth is worked out from it.
    """

    def __init__(self, task_seed: int) -> None:
        self.task = task("heldout", task_seed)
        self.episode_id = f"heldout-{task_seed}"
        self.wrong: list[tuple[Fault, ...]] = []  # of each reply so far

    def user_message(self) -> str | None:
        """The request that waits for a reply, or None when all are answered."""
        asked = len(self.wrong)
        return self.task.requests[asked].text if asked < len(self.task.requests) else None

    def reply(self, text: str) -> None:
        """The agent's answer to the current request."""
        if self.user_message() is None:
            raise ValueError("this episode is over: there is no request to answer")
        request = self.task.requests[len(self.wrong)]
        self.wrong.append(faults(text, truth(request, self.episode_id)))

    def success(self) -> bool:
        """Every request was answered, and right the first time."""
        return self.user_message() is None and not any(self.wrong)
