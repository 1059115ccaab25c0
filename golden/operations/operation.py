"""What the table says of an operation, and what its entries are written with."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.tensor import StoredTensor

Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]


class Operation(NamedTuple):
    """
    run:      the reference
    what:     one sentence
    inputs:   argument -> shape; a name that ends in "?" may be absent
    params:   parameter -> its default; REQUIRED where there is none
    output:   the shape of "y"
    channel:  the axis of "y" along which an error is reported as a channel
    """

    run: Callable[[Arithmetic, Inputs, Params], dict[str, np.ndarray]]
    what: str
    inputs: Mapping[str, str]
    params: Mapping[str, Any]
    output: str
    channel: int = -1


REQUIRED = object()

IMAGE = "[N, C, H, W]"
ROWS = "[..., D]"


def values(a: Arithmetic, tensor: StoredTensor) -> np.ndarray:
    return a.store(tensor.values())


def optional(a: Arithmetic, inputs: Inputs, name: str) -> np.ndarray | None:
    return a.expand(inputs[name]) if name in inputs else None


def entry(run, what, inputs, output, channel=-1, **params) -> Operation:
    return Operation(lambda a, i, p: {"y": run(a, i, p)}, what, inputs, params, output, channel)
