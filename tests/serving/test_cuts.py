"""Streaming and not give the same answer over real HTTP, however the engine's stream is cut."""

import random
from pathlib import Path

import pytest

from serving.engines.stub.script import Reply
from tests.serving.harness import content, events, scripted, world

TEXTS = (
    "Grüße 👩‍💻 aus Lima <tool_",
    "<tool_call>flights(Lima)</tool_call>",
    "Look: <tool_call>calc(1+1)</tool_call> and more",
    "a < b, c <| d, e <tool_calls",
    "line\u2028one\x85two\r\nthree",
    "",
)


@pytest.mark.parametrize("seed", range(4))
async def test_the_visible_text_is_the_same_for_every_cut(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    answers = {}
    for number, text in enumerate(TEXTS):
        cuts = tuple(draw.randrange(1, 20_000) for _ in range(draw.randrange(40)))
        answers[f"whole {number}"] = [Reply(text, chunk=1000), Reply("Done é.", chunk=1000)]
        answers[f"cut {number}"] = [
            Reply(text, chunk=draw.randrange(1, 5), cuts=cuts),
            Reply("Done é.", chunk=draw.randrange(1, 5)),
        ]
    async with world(tmp_path, script=scripted(answers)) as here:
        for number in range(len(TEXTS)):
            expected = (await here.answer(f"whole {number}"))["choices"][0]
            for kind in ("whole", "cut"):
                found = events((await here.chat(f"{kind} {number}", stream=True)).content)
                assert content(found) == expected["message"]["content"]
                assert found[-2]["choices"][0]["finish_reason"] == expected["finish_reason"]
            assert (await here.answer(f"cut {number}"))["choices"][0] == expected
        for record in await here.interactions(4 * len(TEXTS)):
            assert [turn.flaw for turn in record.turns] == [None] * len(record.turns)
