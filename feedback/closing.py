"""Episodes whose time has come are joined and priced; a revision leaves only when what is known has changed."""

from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from sqlalchemy import Connection

from feedback import ledger
from feedback.agent_file import AgentFile
from feedback.bus import Record
from feedback.dead_letters import dead_letter, letter_key
from feedback.fit import fit_experience
from feedback.implicit import Pair, follow_ups, verdicts
from feedback.intake import read_message
from feedback.join import Joined, JoinRules, Stamped, join
from feedback.judging import Judging
from feedback.ledger import Kept, Standing
from feedback.outbox import Outgoing
from feedback.reward import PriceRules, Trust, opinions, price
from feedback.schemas import (
    DEAD_LETTERS,
    EXPERIENCES,
    FEEDBACK,
    INTERACTIONS,
    Experience,
    Judgement,
    OutcomeSource,
    first_reason,
)
from feedback.subgoals import load_checks, potentials

_BATCH = 100


@dataclass
class Closed:
    """What became known: new revisions, and answers that had both a thumb and words."""

    looked_at: int = 0
    experiences: list[Experience] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    """Response ids of which nothing may be remembered."""
    set_aside: int = 0


class Closer:
    """Applies one agent file's rules to the episodes that are due."""

    def __init__(self, agent: AgentFile, judging: Judging) -> None:
        self.join_rules = JoinRules(metrics=agent.metrics, idle_ms=round(agent.episode.idle * 1000))
        self._price_rules = PriceRules(
            rewards=agent.rewards,
            gamma=agent.training.turn.gamma,
            grace_ms=round(agent.episode.grace * 1000),
        )
        self._checks = load_checks(agent.rewards.subgoals)
        self._judging = judging

    def close_due(self, conn: Connection, clock: int) -> Closed:
        """Look at the episodes that are due; those still open get a later time."""
        waiting = ledger.due(conn, clock, limit=_BATCH)
        stored = ledger.records_of(conn, [standing.episode_id for standing in waiting])
        closed = Closed(looked_at=len(waiting))
        changed = []
        for standing in waiting:
            records = [stamped(kept) for kept in stored.get(standing.episode_id, [])]
            joined = join(records, self.join_rules, now=clock)
            if joined is None:
                changed.append(self._still_open(standing))
                continue
            try:
                changed.append(self._settle(joined, standing, closed))
            except ValidationError as error:
                changed.append(_set_aside(joined, standing, closed, reason=first_reason(error)))
            if joined.withdrawn:
                replies = [each.response_id for each in joined.interactions]
                ledger.erase(conn, joined.episode_id, replies)
                closed.withdrawn += replies
        ledger.stand(conn, changed)
        ledger.note_pairs(conn, closed.pairs)
        return closed

    def judge(self, joined: Joined) -> Judgement:
        """What is made of its words now."""
        said = verdicts(follow_ups(joined.interactions), self._judging.judge)
        return Judgement.model_validate({"trust": self._judging.tau(joined.known_at), "verdicts": said})

    def price(self, joined: Joined, judgement: Judgement) -> Experience:
        """Its experience, under this judgement."""
        trust = Trust(rating=self._price_rules.rewards.rating_trust, implicit=judgement.trust)
        phi = potentials(joined.interactions, self._checks)
        return price(joined, judgement.verdicts, trust=trust, rules=self._price_rules, potentials=phi)

    def _settle(self, joined: Joined, standing: Standing, closed: Closed) -> Standing:
        """Price; its revision never goes back, also where a late record undoes an earlier close."""
        joined = replace(joined, revision=max(joined.revision, standing.revision + 1))
        judgement = self.judge(joined)
        experience = self.price(joined, judgement)
        settled = replace(standing, due_at=None, closed=True, withdrawn=joined.withdrawn)
        if experience.id == standing.experience_id:
            return settled
        closed.experiences.append(experience)
        value = fit_experience(experience)
        closed.outgoing.append(Outgoing(EXPERIENCES, joined.episode_id, value, joined.known_at))
        closed.pairs += pairs_of(joined, judgement)
        return replace(settled, revision=experience.revision, experience_id=experience.id)

    def _still_open(self, standing: Standing) -> Standing:
        """An end that came before a later reply, or feedback on what is not here yet."""
        later = None if standing.last_at is None else standing.last_at + self.join_rules.idle_ms
        return replace(standing, due_at=later, closed=False)


def _set_aside(joined: Joined, standing: Standing, closed: Closed, *, reason: str) -> Standing:
    """Records that can be read one by one and make no experience together: a dead letter, and its neighbours go on."""
    nowhere = Record(EXPERIENCES, -1, -1, joined.episode_id, None, joined.known_at)
    letter = dead_letter(nowhere, f"{joined.episode_id}: {reason}", at=joined.known_at)
    closed.outgoing.append(Outgoing(DEAD_LETTERS, letter_key(nowhere), letter.to_bytes(), letter.at))
    closed.set_aside += 1
    return replace(standing, due_at=None, closed=True)


def pairs_of(joined: Joined, judgement: Judgement) -> list[Pair]:
    """The answers of an episode that had both a thumb and a next message; none of what was withdrawn."""
    if joined.withdrawn:
        return []
    found, texts = [], follow_ups(joined.interactions)
    for index, opinion in opinions(joined, {}).items():
        response_id = joined.interactions[index].response_id
        if opinion.source is OutcomeSource.THUMB and opinion.bit is not None and response_id in texts:
            found.append(
                Pair(
                    response_id=response_id,
                    text=texts[response_id],
                    thumb=opinion.bit,
                    verdict=judgement.verdicts.get(response_id, 0),
                    at=joined.known_at,
                )
            )
    return found


def stamped(kept: Kept) -> Stamped:
    """A stored record as the message that it is."""
    topic = FEEDBACK if kept.key.startswith("f/") else INTERACTIONS
    return Stamped(kept.at, read_message(topic, kept.body))
