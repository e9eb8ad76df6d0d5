"""Fixed conversations that travel with an adapter: serving asks the engine for their log-probs and compares.

Invariant: they hold the agent file's own text and nothing that a user wrote.
"""

from __future__ import annotations

from feedback.agent_file import AgentFile
from tools.template import load_template
from tools.toolbox import load_tool

CONVERSATIONS = (
    (("Hello, what can you do for me?", "I can help with that."), "Thank you, that is all."),
    (("I need a flight and a hotel.", "Where do you want to go?"), "Somewhere warm, for three nights."),
    (("What does the first one cost?", "It is 40 a night."), "And for four nights in total?"),
    (("That is wrong.", "I am sorry."), "Please look again and tell me the total."),
)


def probe_prompts(agent: AgentFile) -> list[list[int]]:
    """Token ids: system and tools, one exchange, a second request, the opened turn."""
    template = load_template(agent.model.template, agent.model.path)
    tools = [load_tool(spec) for spec in agent.tools]
    start = template.start(agent.system, tools)
    return [
        [
            *start,
            *template.user(asked),
            *template.assistant(answered),
            *template.user(then),
            *template.open_turn(),
        ]
        for (asked, answered), then in CONVERSATIONS
    ]
