"""The next user message as a rating of the answer before it: thanks, a complaint, or (mostly) nothing. Pure.

An ordinary next request is silence; the model is an argument, and what it is worth is measured against thumbs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedback.schemas import Interaction, Status

SILENCE = 0.15
"""Probabilities closer to 1/2 than this say nothing."""

MIN_PAIRS = 60
MIN_PER_CLASS = 12
FOLDS = 5

Judge = Callable[[str], float]
"""Probability that whoever writes this text is content with the answer before it."""

_COMPLAINT = re.compile(
    r"\b(wrong|incorrect|inaccurate|mistaken?|useless|nonsense|terrible|awful|horrible|unhelpful|disappoint\w*)\b"
    r"|\b(not|n't|never) (right|correct|true|good|helpful|accurate|useful|enough|working)\b"
    r"|\b(is|are|was|were)( not|n't) (the|my|a|an|what|how|in|for)\b"
    r"|\bnot what (i|we)\b"
    r"|\b(i|we) (asked|wanted|meant|told you|already (said|asked|told))\b"
    r"|\byou (forgot|missed|ignored|skipped|misunderstood|misread|failed|got it wrong|made (a|an) \w+)\b"
    r"|\b(did|does|do)( not|n't) (work|help|answer|match|add up|make sense)\b"
    r"|\bthere (is|are|was|were) (a |an |some )?(\w+er|more \w+|better)\b"
    r"|\b(try again|still (wrong|not)|bad (answer|job))\b",
    re.IGNORECASE,
)
_THANKS = re.compile(
    r"\b(thanks|thank you|thx|cheers|much appreciated|appreciate (it|that)|well done|good job|nice work)\b"
    r"|^\W*(great|perfect|excellent|awesome|wonderful|brilliant|fantastic|amazing|lovely|exactly|correct)\b"
    r"|\b(is|are|looks|sounds) (right|correct|perfect|great|good|fine|exactly)\b"
    r"|\b(just|exactly|all|that is|that's) what (i|we) (need|needed|want|wanted|asked)\b"
    r"|\b(very|really|so|super) helpful\b|\bthat helps\b|\byou('re| are) the best\b|\blove it\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\?|\b(please|can you|could you|would you|find|book|show|give me|tell me|make it|change|add|need|want|what|how"
    r"|when|where|which|now|also|instead)\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"^\W*(what('s| is| are)|is|are|was|do|does|did)\b[^.!]*\?\W*$", re.IGNORECASE)
_LONG_WORDS = 30


def rules(text: str) -> float:
    """Word lists of everyday English, for as long as there is too little to learn from.

    Politeness inside a request ("flights to Rome, thanks") is silence; a complaint beats the thanks beside it.
    """
    words = text.split()
    if not words or len(words) > _LONG_WORDS or _QUESTION.match(text):
        return 0.5
    thanks = _THANKS.search(text)
    if _COMPLAINT.search(text):
        return 0.1 if thanks is None else 0.3
    if thanks is None:
        return 0.5
    if not _REQUEST.search(_THANKS.sub(" ", text)):
        return 0.9
    return 0.75 if thanks.start() < 2 and "thank" in thanks[0].lower() else 0.5


def verdict(probability: float) -> int:
    """1 content, -1 not, 0 silence."""
    if abs(probability - 0.5) < SILENCE:
        return 0
    return 1 if probability > 0.5 else -1


def follow_ups(interactions: Sequence[Interaction]) -> dict[str, str]:
    """The user message that answered each reply: the first one, where the conversation branched.

    What follows a request that failed is about the reply before it, as the person saw nothing in between.
    """
    found: dict[str, str] = {}
    previous: str | None = None
    for interaction in interactions:
        judged = interaction.parent_response_id or previous
        if judged is not None and interaction.user_text:
            found.setdefault(judged, interaction.user_text)
        if interaction.status is not Status.FAILED:
            previous = interaction.response_id
    return found


def verdicts(texts: Mapping[str, str], judge: Judge) -> dict[str, int]:
    """What each reply's follow-up meant; silence is left out."""
    judged = {response_id: verdict(judge(text)) for response_id, text in texts.items()}
    return {response_id: value for response_id, value in judged.items() if value}


def trust(agreements: int, pairs: int, *, start: float, needed: int) -> float:
    """tau = max(0, 2 agreement - 1) once enough answers had both a thumb and words; `start` before that."""
    if pairs < needed:
        return start
    return max(0.0, 2.0 * agreements / pairs - 1.0)


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer with a thumb and a next message, and what the judge of that time made of it."""

    response_id: str
    text: str
    thumb: int
    verdict: int
    at: int

    @property
    def agrees(self) -> bool:
        return (self.verdict > 0) == bool(self.thumb)


def learn(pairs: Sequence[Pair]) -> Judge:
    """The judge to use now: a classifier when it agrees with thumbs, out of sample, at least as often as the rules."""
    thumbs = [pair.thumb for pair in pairs]
    if len(pairs) < MIN_PAIRS or min(sum(thumbs), len(thumbs) - sum(thumbs)) < MIN_PER_CLASS:
        return rules
    by_classifier = _out_of_sample(pairs)
    by_rules = [rules(pair.text) for pair in pairs]
    if _usefulness(by_classifier, thumbs) <= _usefulness(by_rules, thumbs):
        return rules
    model = _fit(pairs)
    return lambda text: float(model.predict_proba([text])[0, 1])


def _usefulness(probabilities: Sequence[float], thumbs: Sequence[int]) -> int:
    """Right verdicts minus wrong ones; silence is worth nothing."""
    judged = [verdict(each) for each in probabilities]
    return sum(value if thumb else -value for value, thumb in zip(judged, thumbs, strict=True))


def _out_of_sample(pairs: Sequence[Pair]) -> list[float]:
    """Each text's probability from a model that did not see it; folds by text, so that repeats do not leak."""
    fold_of = {text: number % FOLDS for number, text in enumerate(sorted({pair.text for pair in pairs}))}
    found = [0.5] * len(pairs)
    for fold in range(FOLDS):
        inside = [pair for pair in pairs if fold_of[pair.text] != fold]
        outside = [number for number, pair in enumerate(pairs) if fold_of[pair.text] == fold]
        if not outside or len({pair.thumb for pair in inside}) < 2:
            continue
        scores = _fit(inside).predict_proba([pairs[number].text for number in outside])[:, 1]
        for number, score in zip(outside, scores, strict=True):
            found[number] = float(score)
    return found


def _fit(pairs: Sequence[Pair]) -> Any:
    """Hashed word and character n-grams under logistic regression; classes balanced, so that 1/2 means "no opinion"."""
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    words = HashingVectorizer(n_features=2**13, ngram_range=(1, 2), alternate_sign=False)
    pieces = HashingVectorizer(n_features=2**13, analyzer="char_wb", ngram_range=(3, 4), alternate_sign=False)
    model = make_pipeline(
        make_union(words, pieces), LogisticRegression(C=1.0, class_weight="balanced", solver="liblinear")
    )
    return model.fit([pair.text for pair in pairs], [pair.thumb for pair in pairs])
