"""How an operation is made of ggml's functions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.engines.ggml.graph import Graph, Result
from refsd.golden.case import Case
from refsd.numerics.tensor import StoredTensor

Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]
# Why ggml's function cannot answer a case; None where it can.
Refusal = Callable[[Case], str | None]


class Builder(NamedTuple):
    """
    build: makes the graph
    needs: ggml functions without which it cannot
    """

    build: Callable[[Graph, Inputs, Params], Result]
    needs: tuple[str, ...]
