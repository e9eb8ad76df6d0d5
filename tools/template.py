"""Ids <-> conversation: how a message of each role is spelled in token ids.

Invariant: control tokens come only from this file. Content is always encoded as literal text by a tokenizer
that does not know them, so no user, tool, schema or history text can open, close or forge a message.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from tokenizers import Tokenizer

from tools.parse import CLOSE, OPEN, Call, cut_at_end
from tools.results import whole

START, END, EOS = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def _byte_alphabet() -> dict[str, int]:
    """Byte-level pieces spell each byte by one character: itself where that is printable, else one from U+0100 on."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def signatures(tools: Iterable[BaseTool]) -> dict[str, tuple[str, ...]]:
    """Tool name -> argument names in order: what `parse_turn` needs."""
    return {tool.name: tuple(tool.args) for tool in tools}


class Template(ABC):
    """ChatML scaffolding; a dialect says how tools, calls and results are spelled inside it."""

    name: str
    _call_break = ""  # between a call's markers and its body

    def __init__(self, tokenizer_json: str) -> None:
        spec = json.loads(tokenizer_json)
        self._byte_level = "ByteLevel" in json.dumps(spec.get("decoder"))
        self._whole = Tokenizer.from_str(tokenizer_json)
        self._literal = Tokenizer.from_str(json.dumps(_without_control_tokens(spec)))
        self._controls = {token["content"]: token["id"] for token in spec["added_tokens"]}
        for marker in (START, END):
            if marker not in self._controls:
                raise ValueError(f"the tokenizer lacks the control token {marker}")
        self.stop_ids = tuple(self._controls[end] for end in (END, EOS) if end in self._controls)

    @abstractmethod
    def start(self, system: str, tools: Sequence[BaseTool]) -> list[int]:
        """The opening system message with the tool list."""

    @abstractmethod
    def tool_result(self, name: str, text: str) -> list[int]:
        """A whole message that carries one tool's result."""

    @abstractmethod
    def _calls(self, text: str, calls: Sequence[Call]) -> list[int]:
        """A past turn's calls, to follow its `text`."""

    def user(self, text: str) -> list[int]:
        return self._message("user", self._text(text))

    def system(self, text: str) -> list[int]:
        return self._message("system", self._text(text))

    def assistant(self, text: str, calls: Sequence[Call] = ()) -> list[int]:
        """A whole turn that was not sampled here: a client's history, a teacher's dialogue."""
        return self._message("assistant", self._text(text) + self._calls(text, calls))

    def open_turn(self) -> list[int]:
        """The generation prompt."""
        return [self._controls[START], *self._text("assistant\n")]

    def close_turn(self, sampled: Sequence[int]) -> list[int]:
        """What must follow sampled ids before the next message."""
        ended = bool(sampled) and sampled[-1] == self._controls[END]
        return self._text("\n") if ended else [self._controls[END], *self._text("\n")]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, uncut, control tokens included."""
        return str(self._whole.decode(list(ids), skip_special_tokens=False))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character where the tokenizer is byte-level."""
        piece = self._whole.id_to_token(token) or ""
        if self._byte_level and piece not in self._controls and all(each in _BYTES for each in piece):
            return bytes(_BYTES[each] for each in piece)
        return self.decode([token]).encode()

    def open_call(self) -> list[int]:
        """Begins a call in the turn's place: what is sampled after it is the call's body."""
        return [*self._marker(OPEN), *self._text(self._call_break)]

    def close_call(self) -> list[int]:
        """Ends what `open_call` began."""
        return [*self._text(self._call_break), *self._marker(CLOSE)]

    def shown(self, ids: Sequence[int]) -> str:
        """The part of a turn that people see: a prefix of its text, up to its first call or control token."""
        text = cut_at_end(self.decode(ids))
        for marker in (OPEN, CLOSE, *self._controls):
            text = text.partition(marker)[0]
        return text

    def count(self, text: str) -> int:
        """Tokens of a literal text."""
        return len(self._text(text))

    def _message(self, role: str, content: list[int]) -> list[int]:
        start, end = self._controls[START], self._controls[END]
        return [start, *self._text(f"{role}\n"), *content, end, *self._text("\n")]

    def _text(self, text: str) -> list[int]:
        """Literal text."""
        return list(self._literal.encode(whole(text), add_special_tokens=False).ids)

    def _marker(self, marker: str) -> list[int]:
        """A call marker: one control token where the tokenizer has it, else its pieces."""
        return [self._controls[marker]] if marker in self._controls else self._text(marker)


class Desk(Template):
    """One short system line, positional calls, results in role `tool`: few tokens for a small model."""

    name = "desk"

    def start(self, system: str, tools: Sequence[BaseTool]) -> list[int]:
        listed = " ".join(f"{name}({','.join(args)})" for name, args in signatures(tools).items())
        line = f"{system.strip()} Tools: {listed}" if listed else system.strip()
        return self.system(line.strip())

    def tool_result(self, name: str, text: str) -> list[int]:
        return self._message("tool", self._text(text))

    def _calls(self, text: str, calls: Sequence[Call]) -> list[int]:
        """`flights( Lima)`: after a blank a name has the tokens it has in a sentence, so it can simply be copied."""
        ids: list[int] = []
        for call in calls:
            values = call.arguments_json
            inner = call.arguments if values is None else ",".join(str(value) for value in values.values())
            ids += [*self._marker(OPEN), *self._text(f"{call.name}( {inner})"), *self._marker(CLOSE)]
        return ids


class Hermes(Template):
    """The Hermes/Qwen form: JSON schemas in <tools>, JSON calls, <tool_response> in role `tool`."""

    name = "hermes"
    _call_break = "\n"

    def start(self, system: str, tools: Sequence[BaseTool]) -> list[int]:
        if not tools:
            return self.system(system)
        schemas = "\n".join(_json(convert_to_openai_tool(tool)) for tool in tools)
        ids = self._text(
            f"{system}\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
            f"{schemas}\n</tools>\n\nFor each function call, return a json object with function name and "
            "arguments within "
        )
        ids += [*self._marker(OPEN), *self._marker(CLOSE), *self._text(" XML tags:\n"), *self._marker(OPEN)]
        ids += self._text('\n{"name": <function-name>, "arguments": <args-json-object>}\n')
        return self._message("system", ids + self._marker(CLOSE))

    def tool_result(self, name: str, text: str) -> list[int]:
        opening, closing = self._marker("<tool_response>"), self._marker("</tool_response>")
        return self._message("tool", [*opening, *self._text(f"\n{text}\n"), *closing])

    def _calls(self, text: str, calls: Sequence[Call]) -> list[int]:
        ids: list[int] = []
        for index, call in enumerate(calls):
            break_ = self._text("\n") if index or text else []
            arguments = call.arguments if call.arguments_json is None else _json(call.arguments_json)
            body = f'\n{{"name": {_json(call.name)}, "arguments": {arguments}}}\n'
            ids += [*break_, *self._marker(OPEN), *self._text(body), *self._marker(CLOSE)]
        return ids


TEMPLATES: dict[str, type[Template]] = {template.name: template for template in (Desk, Hermes)}


def load_template(name: str, model_dir: Path) -> Template:
    """The template of that name over `model_dir/tokenizer.json`."""
    if name not in TEMPLATES:
        raise ValueError(f"unknown template {name!r}; known: {', '.join(TEMPLATES)}")
    return TEMPLATES[name]((model_dir / "tokenizer.json").read_text(encoding="utf-8"))


def _without_control_tokens(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer, unable to produce any added token, special or not."""
    model = spec["model"]
    if not isinstance(model.get("vocab"), dict):
        raise ValueError(f"unsupported tokenizer model {model.get('type')!r}: its vocabulary must be a map")
    added = {token["content"] for token in spec["added_tokens"]}
    vocab = {piece: index for piece, index in model["vocab"].items() if piece not in added}
    merges = [merge for merge in model.get("merges", []) if not _spells(merge, added)]
    unknown = None if model.get("unk_token") in added else model.get("unk_token")
    literal = {**model, "vocab": vocab, "merges": merges, "unk_token": unknown}
    return {**spec, "truncation": None, "padding": None, "added_tokens": [], "model": literal}


def _spells(merge: str | Sequence[str], added: AbstractSet[str]) -> bool:
    """Whether a merge makes, or is made of, a control token: ordinary pieces must not grow into one."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return bool(added & {left, right, left + right})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
