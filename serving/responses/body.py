"""What clients of `POST /v1/responses` send, and the chat request that means the same. Pure.

Only text and function tools pass; anything else is a 400 that names the item. Unknown fields are ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from serving.bodies import Body, ChatRequest, Short, TextPart, validate
from serving.errors import field_error

_IGNORED = ("reasoning",)  # items of ours or of other servers that say nothing to the model


class Message(Body):
    """An input message; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]


class FunctionCall(Body):
    """A call that an earlier response handed over."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(max_length=128)]
    arguments: str = ""


class FunctionOutput(Body):
    """What the client's tool returned."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: str | list[TextPart]


class TextFormat(Body):
    """`text.format`: `response_format`, flat."""

    type: str = "text"
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(Body):
    """`text`."""

    format: TextFormat | None = None


class ResponsesRequest(Body):
    """`POST /v1/responses`."""

    model: Short
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=2000)]
    instructions: str | None = None
    previous_response_id: Short | None = None
    store: bool | None = True
    stream: bool | None = False
    background: bool | None = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    user: Short | None = None
    safety_identifier: Short | None = None
    metadata: dict[str, Any] | None = None
    episode_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    def wants_logprobs(self) -> bool:
        """Whether the text comes with log-probabilities."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())


def own_messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The input alone, as chat messages; what a follow-up goes on from."""
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(body.input):
        _add(messages, item, f"input[{index}]")
    if not messages:
        raise field_error("input", "holds nothing to answer", status=400)
    return messages


def as_chat(
    body: ResponsesRequest, earlier: Sequence[dict[str, Any]], own: list[dict[str, Any]]
) -> ChatRequest:
    """The same request to the chat route; instructions are never inherited from `earlier`."""
    if body.background:
        message = "only foreground is supported"
        raise field_error("background", message, status=400, code="unsupported_value")
    said = [{"role": "developer", "content": body.instructions}] if body.instructions else []
    value = {
        "model": body.model,
        "messages": [*said, *earlier, *own],
        "tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": body.wants_logprobs(),
        "top_logprobs": body.top_logprobs,
        "response_format": _format(body.text),
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "metadata": body.metadata,
        "episode_id": body.episode_id,
        "stream": body.stream,
    }
    return validate(ChatRequest, value)


def _add(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Calls of one turn belong to one assistant message."""
    kind = item.get("type", "message")
    if kind in _IGNORED:
        return
    if kind == "message":
        message = validate(Message, item, prefix=where)
        messages.append(message.model_dump(include={"role", "content"}))
    elif kind == "function_call":
        call = validate(FunctionCall, item, prefix=where)
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": call.name, "arguments": call.arguments}
        messages[-1].setdefault("tool_calls", []).append({"id": call.call_id, "function": function})
    elif kind == "function_call_output":
        output = validate(FunctionOutput, item, prefix=where)
        content = output.model_dump(include={"output"})["output"]
        messages.append({"role": "tool", "tool_call_id": output.call_id, "content": content})
    else:
        problem = "only text messages, function calls and their outputs are supported"
        raise field_error("type", problem, status=400, code="unsupported_value", of=where)


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        message = "only function tools are supported"
        raise field_error("type", message, status=400, code="unsupported_value", of=where)
    kept = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": kept}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """`{"type": "function", "name": …}` is flat here."""
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": mode, "tools": [*tools]}:
            return {
                "type": "allowed_tools",
                "allowed_tools": {"mode": mode, "tools": [_choice(t) for t in tools]},
            }
    return choice


def _format(text: TextOptions | None) -> dict[str, Any] | None:
    found = text.format if text is not None else None
    if found is None or found.type != "json_schema":
        return None if found is None else {"type": found.type}
    return {"type": "json_schema", "json_schema": {"name": found.name, "schema": found.schema_}}
