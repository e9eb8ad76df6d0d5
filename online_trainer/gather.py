"""What reaches the trainer between updates: experiences, splits, what MLflow finished; and what it tells in turn.

Invariant: whatever changes the line here is in a checkpoint before it is told.
"""

from __future__ import annotations

import logging

from feedback.manifest import ManifestError
from feedback.schemas import Decision, TrafficSplit, version_number
from online_trainer import account
from online_trainer.collect import Readable, collect
from online_trainer.follow import read_split
from online_trainer.pause import Pause
from online_trainer.registry import RegistryDown
from online_trainer.state import Version
from online_trainer.trainer import Trainer

log = logging.getLogger(__name__)


def gather(trainer: Trainer, *, poll_s: float) -> bool:
    """Read the bus; follow the champion; take note of what MLflow has by now. Whether there is or soon will be anything.

    A batch that is written down is used first: a resumed trainer must see what the killed one saw.
    """
    if trainer.progress.pending:
        return True
    records = trainer.reader.poll(poll_s)
    found = collect(
        records,
        agent=trainer.parts.agent.agent,
        buffer=trainer.buffer,
        replay=trainer.replay,
        positions=trainer.positions,
        readable=Readable(trainer.policy.vocabulary, trainer.policy.max_length),
        now_ms=trainer.now(),
    )
    trainer.progress.letters += found.dead
    turned = [follow(trainer, split) for split in found.splits]
    published = announce(trainer)
    if any(turned) or published or found.dead:
        trainer.save("followed")
    come_back(trainer)
    monitor = trainer.parts.monitor
    monitor.waiting.set(len(trainer.buffer.waiting))
    monitor.publications.set(len(trainer.progress.publications))
    monitor.saw_lag(trainer.reader.lag())
    return bool(records or published) or trainer.parts.publisher.is_offering()


def follow(trainer: Trainer, split: TrafficSplit) -> bool:
    """Go on, or return to the champion and reject what descends from it."""
    progress = trainer.progress
    if split.generation <= progress.generation:
        return False
    turn = read_split(progress, split)
    if turn.champion != progress.champion:
        progress.pause = Pause()  # what was refused was measured against another champion's traffic
    progress.generation, progress.champion = split.generation, turn.champion
    if turn.champion not in progress.versions:
        champion = split.champion
        progress.versions[turn.champion] = Version(
            at_update=progress.accepted, uri=champion.uri, digest=champion.digest
        )
    progress.versions[turn.champion].rejected = False  # a retried trial may have taken it back
    if turn.returns:
        progress.return_to = turn.champion
        log.warning("returning to %s, rejected: %s", turn.champion, ", ".join(turn.rejected) or "none")
        _reject(trainer, turn.rejected)
    return True


def _reject(trainer: Trainer, versions: tuple[str, ...]) -> None:
    """The champion's descendants are refused, published or not."""
    progress = trainer.progress
    for name in versions:
        progress.versions[name].rejected = True
    trainer.parts.publisher.cancel([waiting.update.update_id for waiting in progress.publications])
    for waiting in progress.publications:
        if waiting.offer:
            refused = waiting.update.model_copy(
                update={"decision": Decision.REFUSED, "reasons": ("rejected: ancestor",)}
            )
            progress.letters.append(account.update_letter(refused))
    progress.publications = []


def come_back(trainer: Trainer) -> None:
    """Load the champion when the head must return to it; while only MLflow has it and is away or damaged, learning waits."""
    target = trainer.progress.return_to
    if target is None:
        return
    try:
        trainer.return_to(target)
    except (RegistryDown, ManifestError) as error:
        log.warning("cannot return to %s yet: %s", target, error)
        return
    trainer.progress.return_to = None
    trainer.save("returned")


def announce(trainer: Trainer) -> bool:
    """Note what MLflow has; an offer is told once it has its version."""
    progress = trainer.progress
    waiting = {publication.update.update_id for publication in progress.publications}
    done = [p for p in trainer.parts.publisher.results() if p.publication.update.update_id in waiting]
    for published in done:
        publication, version = published.publication, published.version
        progress.publications.remove(publication)
        if version is None:
            continue
        progress.versions[version] = Version(
            at_update=publication.at_update,
            serial=publication.serial,
            uri=published.uri,
            digest=publication.digest,
        )
        progress.reserved = max(progress.reserved, version_number(version))
        offer = publication.update.model_copy(
            update={"version": version, "uri": published.uri, "digest": publication.digest}
        )
        progress.letters.append(account.update_letter(offer))
        log.info("offered %s, parent %s", version, publication.update.parent)
    return bool(done)


def tell(trainer: Trainer) -> None:
    """Send what is written down, hand accepted updates to the publisher."""
    trainer.send()
    trainer.parts.publisher.submit(trainer.progress.publications)
