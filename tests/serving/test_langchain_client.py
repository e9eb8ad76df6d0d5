"""LangChain's `ChatOpenAI` with nothing but a base URL: plain, streamed, tools, structured output, over both APIs."""

from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.serving.harness import AGENT, scripted, world
from tests.serving.loop.test_client_tools import WEATHER


class Trip(BaseModel):
    """Where to, and for how long."""

    city: str
    nights: int


SCRIPT = scripted(
    {
        "Say": "Grüße 👩‍💻",
        "Weather?": ["get_weather(Lima)", "Sunny."],
        "Trip": '{"city": "Lima", "nights": 4}',
    }
)


@pytest.mark.parametrize("responses", [False, True])
async def test_every_way_that_langchain_talks(tmp_path: Path, responses: bool) -> None:
    async with world(tmp_path, script=SCRIPT) as here:
        options: Any = {
            "base_url": f"{here.url}/v1",
            "api_key": "secret-app",
            "model": AGENT,
            "max_retries": 0,
        }
        model = ChatOpenAI(use_responses_api=responses, stream_usage=True, **options)
        whole = await model.ainvoke("Say")
        assert whole.text == "Grüße 👩‍💻" and whole.usage_metadata
        chunks = [chunk async for chunk in model.astream("Say")]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        bound = model.bind_tools([WEATHER], tool_choice="get_weather", parallel_tool_calls=False)
        asked = await bound.ainvoke("Weather?")
        (call,) = asked.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Lima"})
        free = model.bind_tools([WEATHER])
        told = {"role": "tool", "content": "sunny, 30", "tool_call_id": call["id"]}
        answer = await free.ainvoke([{"role": "user", "content": "Weather?"}, asked, told])
        assert answer.text == "Sunny."
        trip = await model.with_structured_output(Trip, method="json_schema").ainvoke("Trip")
        assert trip == Trip(city="Lima", nights=4)
        records = await here.interactions(5)
        assert len({record.episode_id for record in records}) == 4
        assert sorted(str(record.sampling.untrainable_reason()) for record in records) == [
            "None",
            "None",
            "None",
            "response_format",
            "tool_choice",
        ]
