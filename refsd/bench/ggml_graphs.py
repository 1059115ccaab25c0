"""Run a benchmark row in ggml: build the graph once, run it at every call."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refsd.bench.row import Absent, Ready
from refsd.engines.ggml.devices import Backend
from refsd.engines.ggml.graph import Graph
from refsd.engines.ggml.library import Library
from refsd.engines.ggml.ops import BUILDERS, FLASH_BUILDERS
from refsd.golden.operations import complete
from refsd.numerics.tensor import stored


class GgmlTools:
    """ggml's CPU backend as a contender.

    place:   path of a shared libggml
    threads: threads of its CPU backend
    """

    def __init__(self, place: Path, threads: int):
        self.libggml = Library(place)
        self.threads = threads
        self._backend = Backend(self.libggml, threads=threads)
        self._graph: Graph | None = None

    def ready(self, op: str, inputs: Mapping[str, np.ndarray], params: Mapping[str, Any], flash=False) -> Ready:
        """Build an operation's graph as refsd/engines/ggml/ops does, and free the previous graph."""
        builder = (FLASH_BUILDERS if flash else BUILDERS)[op]
        missing = [name for name in builder.needs if name not in self.libggml]
        if missing:
            raise Absent(f"this libggml has no {', '.join(missing)}")
        if self._graph:
            self._graph.__exit__(None, None, None)
        self._graph = graph = Graph(self._backend)
        tensors = {name: stored(a) for name, a in inputs.items()}
        result = builder.build(graph, tensors, complete(op, tensors, params))
        return Ready(graph.ready(result), lambda: graph.fetch(result))
