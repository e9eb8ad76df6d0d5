"""A tool that takes longer than any test waits."""

import asyncio

from langchain_core.tools import tool


@tool
async def wait(text: str) -> str:
    """Answer after ten seconds."""
    await asyncio.sleep(10)
    return text
