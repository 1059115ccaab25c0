"""How an operation is made of ggml's functions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.golden.engines.ggml_graph import Graph, Result
from refsd.golden.tensor import StoredTensor

Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]


class Builder(NamedTuple):
    """
    build: makes the graph
    needs: ggml functions without which it cannot
    """

    build: Callable[[Graph, Inputs, Params], Result]
    needs: tuple[str, ...]
