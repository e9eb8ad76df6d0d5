"""Sampled text -> visible text and tool calls, for both dialects.

Invariant: a call that cannot be read is kept with its `error`; it is never replaced by an empty one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Dialect = Literal["desk", "hermes"]
Signatures = Mapping[str, Sequence[str]]  # tool name -> its argument names, in order

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ENDS = ("<|im_end|>", "<|endoftext|>")
RAW_CAP = 160  # characters of a malformed call quoted back to the model


@dataclass(frozen=True)
class Call:
    """One tool call as the model wrote it; `arguments` is the raw text, exactly as sampled."""

    name: str
    arguments: str
    arguments_json: dict[str, Any] | None = None
    error: str | None = None

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> "Call":
        """A well-formed call that nobody sampled: a client's history, a teacher's dialogue."""
        return cls(name, json.dumps(dict(arguments), ensure_ascii=False), dict(arguments))


@dataclass(frozen=True)
class ParsedTurn:
    text: str
    calls: tuple[Call, ...]


def parse_turn(raw_text: str, dialect: Dialect, argument_names: Signatures) -> ParsedTurn:
    """Split an uncut completion at its call markers; text outside them is what people may see."""
    read = {"desk": _read_desk, "hermes": _read_hermes}[dialect]
    first, *rest = cut_at_end(raw_text).split(OPEN)
    text, calls = _outside(first)
    for piece in rest:
        body, closed, after = piece.partition(CLOSE)
        calls.append(read(body, argument_names) if closed else _bad("", body, f"{OPEN} is never closed"))
        seen, stray = _outside(after)
        text += seen
        calls += stray
    return ParsedTurn(text.strip(), tuple(calls))


def cut_at_end(raw_text: str) -> str:
    """The text before the first end-of-message marker."""
    for end in ENDS:
        raw_text = raw_text.partition(end)[0]
    return raw_text


def _outside(text: str) -> tuple[str, list[Call]]:
    """Text between calls; a closing marker without an opening one is a malformed call."""
    strays = text.count(CLOSE)
    return text.replace(CLOSE, ""), [_bad("", text, f"{CLOSE} without {OPEN}")] * strays


def _read_desk(body: str, signatures: Signatures) -> Call:
    """`flights(Lima)`: positional text; the last argument keeps any commas."""
    name, paren, inner = body.strip().partition("(")
    name = name.strip()
    if not paren:
        return _bad("", body, "a call is written name(argument)")
    if name not in signatures:
        return _bad(name, inner.removesuffix(")"), f"unknown tool {name[:40]!r}")
    if not inner.endswith(")"):
        return _bad(name, inner, "the closing parenthesis is missing")
    inner = inner[:-1]
    names = tuple(signatures[name])
    values = [part.strip() for part in inner.split(",", len(names) - 1)] if names else [inner.strip()]
    if not names and values == [""]:
        return Call(name, inner, {})
    if len(values) != len(names) or "" in values:
        return _bad(name, inner, f"{name} takes ({', '.join(names)})")
    return Call(name, inner, dict(zip(names, values, strict=True)))


def _read_hermes(body: str, signatures: Signatures) -> Call:
    """`{"name": ..., "arguments": {...}}`; the raw argument text is cut out, not re-serialised."""
    try:
        call = _one_object(body)
    except ValueError as problem:
        return _bad("", body, str(problem))
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return _bad("", body, '"name" must be a tool name')
    if "arguments" not in call:
        return _bad(name, body, '"arguments" is missing')
    raw = _raw_value(body, "arguments")
    arguments = call["arguments"]
    if not isinstance(arguments, dict):
        return _bad(name, raw, f'"arguments" must be a JSON object, not {_kind(arguments)}')
    if name not in signatures:
        return Call(name, raw, arguments, f"unknown tool {name[:40]!r}")
    return Call(name, raw, arguments)


def _one_object(text: str) -> dict[str, Any]:
    stripped = text.strip()
    try:
        value, end = json.JSONDecoder(object_pairs_hook=_unique).raw_decode(stripped)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"not valid JSON ({problem.msg} at character {problem.pos})") from None
    if stripped[end:].strip():
        raise ValueError("more text follows the JSON object; write one object per call")
    if not isinstance(value, dict):
        raise ValueError(f"a call must be a JSON object, not {_kind(value)}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key repeat and keeps the last: which one was meant is not ours to choose."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _raw_value(text: str, key: str) -> str:
    """The source text of a top-level key's value in one valid JSON object."""
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while True:
        at = _skip(text, at, ",")
        found, at = decoder.raw_decode(text, at)
        at = _skip(text, at, ":")
        _, end = decoder.raw_decode(text, at)
        if found == key:
            return text[at:end]
        at = end


def _skip(text: str, at: int, mark: str) -> int:
    while text[at] in f" \t\r\n{mark}":
        at += 1
    return at


def _kind(value: object) -> str:
    names = {type(None): "null", list: "a list", str: "a string", bool: "a boolean", dict: "an object"}
    return names.get(type(value), "a number")


def _bad(name: str, raw: str, problem: str) -> Call:
    quoted = raw if len(raw) <= RAW_CAP else f"{raw[:RAW_CAP]}… ({len(raw)} characters)"
    return Call(name, raw, None, f"{problem}: {quoted!r}" if quoted else problem)
