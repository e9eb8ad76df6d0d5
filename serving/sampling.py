"""How a request is sampled: what the agent file says, changed by the client where it may. Pure.

What is not plain temperature sampling is honoured and noted, so that the turn is not trained (design 13).
"""

from typing import Any

from feedback.agent_file import ClientSampling
from feedback.schemas import Sampling
from serving.bodies import ChatRequest

_PLAIN = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0}


def choose(body: ChatRequest, rules: ClientSampling) -> tuple[Sampling, dict[str, Any]]:
    """(what is recorded, the engine's parameters)."""
    if rules.client == "ignore":
        return Sampling(temperature=rules.temperature), {"temperature": rules.temperature}
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
    if body.response_format and body.response_format.get("type") != "text":
        params["response_format"] = body.response_format
        other.append("response_format")
    if body.seed is not None:
        params["seed"] = body.seed
    top_p, top_k = body.top_p or 1.0, body.top_k or -1
    if top_p < 1.0:
        params["top_p"] = top_p
    if top_k > 0:
        params["top_k"] = top_k
    return Sampling(temperature=temperature, top_p=top_p, top_k=top_k, other=tuple(other)), params
