"""Comparisons and corrections: from an experience to a pair that the reward model learns from."""

from __future__ import annotations

import pytest
import torch

from feedback.schemas import Comparison, Correction, Experience
from feedback.training_section import RewardModelSettings
from online_trainer.corrections import better_answers, spelled
from online_trainer.features import Features
from online_trainer.judge import preferred, train_judge
from online_trainer.lessons import CHILD, Lesson, Replay
from tests.online_trainer.tiny import experience, priced
from tests.serving.tiny import write_model
from tools.template import Template, load_template


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return load_template("desk", write_model(tmp_path_factory.mktemp("model")))


def answered(number: int, **changes: object) -> Experience:
    turns = [
        priced([1, 9], [2], [-1.0], index=number),
        priced([1, 9, 2, 8], [3], [-1.0], index=1000 + number),
    ]
    return experience(number, turns, thumb=None, **changes)


def better_than(number: int, other: int) -> Comparison:
    return Comparison(
        chosen=f"chatcmpl-{number}",
        rejected=f"chatcmpl-{other}",
        chosen_episode=f"ep_{number:06d}",
        rejected_episode=f"ep_{other:06d}",
        rater="judge-1",
    )


def should_have_said(number: int, text: str, *, call: str | None = None) -> Correction:
    return Correction(response_id=f"chatcmpl-{number}", tool_call_id=call, text=text, rater="judge-2")


def replay_of(*items: Experience) -> Replay:
    """Every answer's feature is its episode's number, a correction's is 99."""
    replay = Replay()
    for each in items:
        replay.add(each)
        number = 99.0 if CHILD in each.episode_id else float(each.episode_id[3:])
        count = len(each.turns)
        replay.features[each.episode_id] = Features(torch.zeros(count, 9), torch.full((count, 8), number))
    return replay


def test_a_correction_is_spelled_as_the_model_would_have_sampled_it(template: Template) -> None:
    text = "It is 40 a night."
    ids = spelled(template, text)
    assert ids[-1] in template.stop_ids
    whole = [*template.open_turn(), *ids, *template.close_turn(ids)]
    assert whole == template.assistant(text)


def test_what_should_have_been_said_stands_where_the_answer_stood(template: Template) -> None:
    said = answered(3, corrections=(should_have_said(3, "It is 40."), should_have_said(3, "No.", call="c1")))
    (made,) = better_answers(said, lambda text: spelled(template, text), max_length=256)
    assert made.episode_id.startswith(f"ep_000003{CHILD}")
    assert made.turns[0].turn.prompt_ids == (1, 9)
    assert made.turns[0].turn.token_ids == tuple(spelled(template, "It is 40."))
    assert not made.trainable and made.turns[0].untrainable == made.turns[0].turn.flaw == "correction"
    assert made.outcome_reward is None and made.thumb is None and made.corrections == ()
    assert better_answers(said, None, max_length=256) == []
    assert better_answers(said, lambda text: [1] * 20, max_length=20) == []


def test_pairs_come_from_both_and_only_where_both_answers_were_read() -> None:
    corrected = answered(
        4, corrections=(should_have_said(4, "It is 40."), should_have_said(4, "x", call="c1"))
    )
    (written,) = better_answers(corrected, lambda text: [7, 7], max_length=256)
    items = [answered(1, comparisons=(better_than(1, 2), better_than(3, 1))), answered(2), corrected, written]
    pairs = preferred(replay_of(*items))
    assert pairs.better_NF[:, 0].tolist() == [1.0, 99.0]
    assert pairs.worse_NF[:, 0].tolist() == [2.0, 4.0]
    assert pairs.raters == ("judge-1", "judge-2")
    assert len(preferred(replay_of(answered(1), corrected))) == 0


def test_another_text_is_another_answer() -> None:
    """The old correction's answer is still there; nobody prefers it any more."""
    first = answered(4, corrections=(should_have_said(4, "It is 40."),))
    second = answered(4, revision=2, corrections=(should_have_said(4, "It is 50."),))
    (old,) = better_answers(first, lambda text: [7], max_length=256)
    assert len(preferred(replay_of(first, old))) == 1
    assert len(preferred(replay_of(first, old, second))) == 0


def test_comparisons_reach_the_reward_model_and_change_nothing_where_there_are_none() -> None:
    settings = RewardModelSettings(hidden=8)
    replay = replay_of(answered(1, comparisons=(better_than(1, 2),)), answered(2))
    model, trial = train_judge(replay, features=8, settings=settings, seed=1)
    assert trial.pairs == 1 and not trial.passes(settings)
    untouched, without = train_judge(
        replay_of(answered(1), answered(2)), features=8, settings=settings, seed=1
    )
    assert without.pairs == 0 and without.pair_agreement == 0.5
    probe = torch.ones(1, 8)
    assert not torch.equal(model.scores(probe), untouched.scores(probe))


def test_a_late_correction_asks_for_another_reading_and_goes_with_its_episode() -> None:
    plain = answered(4)
    corrected = answered(4, revision=2, corrections=(should_have_said(4, "It is 40."),))
    (written,) = better_answers(corrected, lambda text: [7], max_length=256)
    replay = replay_of(plain)
    replay.unseen = {}
    replay.add(corrected)
    assert [e.episode_id for e in replay.rated_unseen(5)] == ["ep_000004"]
    replay = replay_of(corrected, written)
    assert set(replay.order()) == {"ep_000004", written.episode_id}
    assert replay.known() == []
    replay.withdraw("ep_000004")
    assert replay.lessons == replay.features == replay.unseen == {}


def test_a_lesson_survives_its_checkpoint() -> None:
    lesson = Lesson.of(answered(1, comparisons=(better_than(1, 2),)))
    assert Lesson.model_validate_json(lesson.model_dump_json()) == lesson
    old = Lesson.model_validate(lesson.model_dump(exclude={"states", "answers", "preferences"}))
    assert old.preferences == ()
