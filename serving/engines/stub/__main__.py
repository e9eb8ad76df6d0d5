"""`python -m serving.engines.stub --port N --model-dir DIR`: tests, benches and users can run the gateway without weights."""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from serving.engines.stub.script import Reply, cycle
from serving.engines.stub.server import StubEngine, start_stub


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m serving.engines.stub", description=__doc__)
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model-dir", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--served-model-name", default="travel-desk-000000")
    parser.add_argument("--max-loras", type=int, default=5)
    parser.add_argument(
        "--reply", action="append", default=[], help="text of a reply; repeat for several, used in turn"
    )
    parser.add_argument("--tokens", type=int, help="cut or repeat every reply to this many tokens")
    parser.add_argument("--total-ms", type=float, default=0.0, help="time over which a reply is spread")
    return parser.parse_args()


def _replies(options: argparse.Namespace, tokenizer: Tokenizer) -> list[Reply]:
    replies = []
    for text in options.reply or ["Hello, how can I help?"]:
        reply = Reply(text)
        if options.tokens:
            ids = list(tokenizer.encode(text).ids)
            repeated = (ids * (options.tokens // len(ids) + 1))[: options.tokens]
            reply = replace(reply, ids=tuple(repeated), each_s=options.total_ms / 1000 / options.tokens)
        replies.append(reply)
    return replies


async def _main() -> None:
    options = _arguments()
    tokenizer = Tokenizer.from_file(str(options.model_dir / "tokenizer.json"))
    script = cycle(_replies(options, tokenizer))
    stub = StubEngine(options.served_model_name, tokenizer, script, max_loras=options.max_loras)
    runner, _ = await start_stub(stub, port=options.port, host=options.host)
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_main())
