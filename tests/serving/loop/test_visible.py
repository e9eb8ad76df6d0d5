"""What is shown never depends on how the stream was cut: ids, bytes, split characters, calls, stop strings."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.engine import EngineBroken, read_event
from serving.loop.visible import VisibleText, markers
from serving.sse import EventParser, event
from tests.serving.tiny import tiny_tokenizer, write_model
from tools.template import Template, load_template

TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return load_template("desk", write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return markers(write_model(tmp_path_factory.mktemp("model")))


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<tool",
                "<",
                "<|im_end|>",
                "<|im_",
                "👩‍💻",
                "é",
                "stop",
                "st",
                "\ufffd",
                "the ",
            ]
        ),
    ),
    max_size=12,
).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in pairwise(edges)] or [ids]


@given(text=TEXTS, special=st.booleans(), cuts=CUTS)
def test_any_cut_of_the_ids_shows_what_the_template_shows(
    template: Template, hidden: tuple[str, ...], text: str, special: bool, cuts: list[int]
) -> None:
    """With control tokens, and with the same text spelled in plain tokens."""
    clean = text.encode("utf-8", "replace").decode()
    ids = list(TOKENIZER.encode(clean).ids) if special else template.user(clean)[2:-2]
    visible = VisibleText(template, hidden)
    given_text = [visible.feed(piece) for piece in pieces(ids, cuts)]
    joined = "".join([*given_text, visible.finish()])
    assert joined == template.shown(ids) == visible.text


@given(
    text=TEXTS,
    cuts=CUTS,
    stops=st.lists(st.sampled_from(["stop", "st", "é", "the", "<"]), min_size=1, max_size=2),
)
def test_any_cut_stops_at_the_same_place(
    template: Template, hidden: tuple[str, ...], text: str, cuts: list[int], stops: list[str]
) -> None:
    clean = text.encode("utf-8", "replace").decode()
    ids = list(TOKENIZER.encode(clean).ids)
    whole = template.decode(ids)
    ends = [at for mark in (*hidden, *stops) if (at := whole.find(mark)) >= 0]
    visible = VisibleText(template, hidden, stops)
    joined = "".join([*(visible.feed(piece) for piece in pieces(ids, cuts)), visible.finish()])
    assert joined == whole[: min(ends, default=len(whole))]


@given(st.binary(max_size=60), st.lists(st.integers(0, 400), max_size=8))
def test_ids_that_are_no_text_never_break_it(
    template: Template, hidden: tuple[str, ...], raw: bytes, cuts: list[int]
) -> None:
    """Any byte sequence, as byte-level tokens: invalid UTF-8 shows the same in every cut."""
    ids = [5 + byte for byte in raw]
    visible = VisibleText(template, hidden)
    joined = "".join([*(visible.feed(piece) for piece in pieces(ids, cuts)), visible.finish()])
    assert joined == template.shown(ids)


@given(
    values=st.lists(st.text(max_size=20), max_size=5),
    cuts=st.lists(st.integers(0, 500), max_size=10),
    crlf=st.booleans(),
)
def test_events_survive_every_cut_of_the_bytes(values: list[str], cuts: list[int], crlf: bool) -> None:
    clean = [value.encode("utf-8", "replace").decode() for value in [*values, "a\u2028b\x85c"]]
    body = b": hello\n\n" + b"".join(event({"text": value}) for value in clean)
    body = body.replace(b"\n", b"\r\n") if crlf else body
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    parser = EventParser()
    found = [orjson.loads(data) for start, end in pairwise(edges) for data in parser.feed(body[start:end])]
    assert [each["text"] for each in found] == clean


def test_a_lie_of_the_engine_is_broken_and_not_recorded_as_truth() -> None:
    good = {
        "model": "v1",
        "choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": None}],
    }
    found = read_event(orjson.dumps(good), [7], "v1")
    assert found is not None and (found.token_ids, found.logprobs) == ([1], [-0.5])
    lies = [
        {**good, "model": "v2"},
        {**good, "choices": [{**good["choices"][0], "prompt_token_ids": [8]}]},  # type: ignore[index]
        {**good, "choices": [{"finish_reason": None}]},
        {"error": {"message": "x"}},
    ]
    for lie in lies:
        with pytest.raises(EngineBroken):
            read_event(orjson.dumps(lie), [7], "v1")
    with pytest.raises(EngineBroken):
        read_event(b"{", [7], "v1")
