"""Declare how to build an operation from ggml's functions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.engines.ggml.graph import Graph, Result
from refsd.golden.case import Case
from refsd.numerics.tensor import StoredTensor

Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]
# Returns the reason why ggml's function cannot compute a case, or None if it can.
Refusal = Callable[[Case], str | None]


class Builder(NamedTuple):
    """The graph of one operation.

    build: builds the graph
    needs: ggml functions that the graph requires
    """

    build: Callable[[Graph, Inputs, Params], Result]
    needs: tuple[str, ...]
