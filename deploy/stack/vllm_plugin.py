"""A plugin that vLLM loads in each of its processes: on a CPU its LoRA kernels must leave requests without an adapter alone.

They look a row's adapter up by index, and the index that stands for "none" is -1: in a batch with others such a row passes
through the adapter of the last slot (measured on the desk model: .23 nats from itself). Slots fill up and are never emptied,
so from the fifth version on the start would answer through a later one.
"""

from typing import Any


def register() -> None:
    """Let rows without an adapter leave the first half of the kernel as zeros; the second half then adds nothing."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    shrink = lora_ops.bgmv_shrink

    def shrink_adapted_rows(
        inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0
    ) -> None:
        shrink(inputs, weights, output, indices, scaling)
        output[: len(indices)][indices < 0] = 0

    for module in (lora_ops, punica_cpu):
        vars(module)["bgmv_shrink"] = shrink_adapted_rows
