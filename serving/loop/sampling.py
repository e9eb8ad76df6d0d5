"""How a request is sampled: what the agent file says, changed by the client where it may. Pure.

What is not plain temperature sampling is honoured and noted, so that the turn is not trained (design 13).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedback.agent_file import ClientSampling
from feedback.schemas import Sampling
from serving.bodies import ChatRequest
from serving.loop.client_tools import ANY_TOOL, ToolChoice
from serving.loop.grammar import json_answer

_PLAIN = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0}


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is recorded, and what the engine and the loop are told."""

    recorded: Sampling
    params: Mapping[str, Any]
    choice: ToolChoice = ANY_TOOL
    answer_params: Mapping[str, Any] | None = None


def choose(body: ChatRequest, choice: ToolChoice, rules: ClientSampling) -> Chosen:
    """Raises ApiError for a `response_format` that is none, also where it would be ignored."""
    answer = json_answer(body.response_format)
    if rules.client == "ignore":
        recorded = Sampling(temperature=rules.temperature)
        return Chosen(recorded, {"temperature": rules.temperature}, replace(choice, forced=False))
    temperature = rules.temperature if body.temperature is None else body.temperature
    params: dict[str, Any] = {"temperature": temperature}
    other: list[str] = []
    given = body.model_dump(include=set(_PLAIN))
    for name, plain in _PLAIN.items():
        if given[name] is not None and given[name] != plain:
            params[name] = given[name]
            other.append(name)
    if body.logit_bias:
        params["logit_bias"] = body.logit_bias
        other.append("logit_bias")
    if answer is not None:
        other.append("response_format")
    if choice.forced:
        other.append("tool_choice")
    if body.seed is not None:
        params["seed"] = body.seed
    top_p, top_k = body.top_p or 1.0, body.top_k or -1
    if top_p < 1.0:
        params["top_p"] = top_p
    if top_k > 0:
        params["top_k"] = top_k
    recorded = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, other=tuple(other))
    return Chosen(recorded, params, choice, answer)


def reseeded(params: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """The parameters of the index-th of several answers: with one seed for all they would be one answer."""
    if index == 0 or "seed" not in params:
        return params
    return {**params, "seed": (params["seed"] + index) % 2**63}
