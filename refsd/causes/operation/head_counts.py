"""Attention with another number of heads, of as many channels together."""

from collections.abc import Iterator

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import stored


def head_counts(op: Operation, inputs: Inputs, params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) for each number of heads that divides the channels. params: complete"""
    if op.name != "attention" or len({inputs[name].shape[-2:] for name in "qkv"}) > 1:
        return
    H, D = inputs["q"].shape[-2:]
    own = params["scale"] if params["scale"] is not None else D**-0.5
    mask = inputs["mask"].shape if "mask" in inputs else ()
    if len(mask) == 4 and mask[1] > 1:
        return
    for heads in (h for h in range(1, H * D // 2 + 1) if H * D % h == 0 and h != H):
        width = H * D // heads
        values = {name: np.ascontiguousarray(inputs[name].values(), np.float32) for name in "qkv"}
        changed = {name: stored(x.reshape(*x.shape[:-2], heads, width)) for name, x in values.items()}
        for scale, words in ((own * (D / width) ** 0.5, ""), (own, f", with the scale of {D}")):
            y = answer(op, {**inputs, **changed}, {**params, "scale": scale})
            yield f"{heads} heads of {width} channels, not {H} of {D}{words}", y.reshape(inputs["q"].shape)
