"""Log-probabilities for clients: of exactly the shown tokens, the same for every cut, never -inf or NaN."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.engine import LOWEST_LOGPROB, Sampled
from serving.loop.logprobs import ShownTokens, TokenScore
from serving.loop.visible import VisibleText, markers
from tests.serving.loop.test_visible import CUTS, TEXTS, pieces
from tests.serving.tiny import tiny_tokenizer, write_model
from tools.template import Template, load_template

TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return load_template("desk", write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return markers(write_model(tmp_path_factory.mktemp("model")))


def scored(template: Template, hidden: tuple[str, ...], ids: list[int], cuts: list[int]) -> list[TokenScore]:
    """As the agent loop does it: after each visible piece, what begins within the shown text."""
    visible, tokens, found = VisibleText(template, hidden, ("stop",)), ShownTokens(template), []
    for piece in pieces(ids, cuts):
        visible.feed(piece)
        tokens.feed(Sampled(piece, [-0.5] * len(piece)))
        found += tokens.shown(len(visible.text))
        if visible.stopped:
            return found
    tokens.finish()
    visible.finish()
    return [*found, *tokens.shown(len(visible.text))]


@given(text=TEXTS, cuts=CUTS)
def test_the_same_tokens_for_every_cut_and_their_bytes_are_the_shown_text(
    template: Template, hidden: tuple[str, ...], text: str, cuts: list[int]
) -> None:
    ids = list(TOKENIZER.encode(text.encode("utf-8", "replace").decode()).ids)
    found = scored(template, hidden, ids, cuts)
    assert found == scored(template, hidden, ids, [])
    whole = VisibleText(template, hidden, ("stop",))
    whole.feed(ids)
    whole.finish()
    assert b"".join(score.raw for score in found).startswith(whole.text.encode())
    if found:  # the last token is needed: without it the text is not whole
        assert len(b"".join(score.raw for score in found[:-1])) < len(whole.text.encode())


@given(st.text(max_size=12))
def test_the_bytes_of_tokens_joined_are_the_text(template: Template, text: str) -> None:
    raw = text.encode("utf-8", "replace")
    ids = TOKENIZER.encode(raw.decode()).ids
    assert b"".join(template.token_bytes(token) for token in ids) == raw


def test_what_json_cannot_say_becomes_a_large_negative_number(template: Template) -> None:
    tokens = ShownTokens(template)
    ids = list(TOKENIZER.encode("abc").ids)
    top = ({ids[0]: -math.inf}, {ids[1]: math.nan}, {})
    tokens.feed(Sampled(ids, [-math.inf, math.nan], None, top))
    tokens.finish()
    shapes = [score.shape() for score in tokens.shown(3)]
    assert [shape["logprob"] for shape in shapes] == [LOWEST_LOGPROB] * 3
    assert shapes[0]["top_logprobs"] == [{"token": "a", "logprob": LOWEST_LOGPROB, "bytes": [97]}]


def test_bytes_of_a_control_token_are_its_name(template: Template, tmp_path: Path) -> None:
    assert template.token_bytes(TOKENIZER.token_to_id("<tool_call>")) == b"<tool_call>"
