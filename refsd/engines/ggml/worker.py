"""Run libggml in a process of its own: `python -m refsd.engines.ggml.worker LIBRARY THREADS`."""

import sys
from pathlib import Path

import numpy as np

from refsd.engines.ggml.graph import Graph
from refsd.engines.ggml.library import Library
from refsd.engines.ggml.ops import BUILDERS, DIRECT_BUILDERS, FLASH_BUILDERS
from refsd.engines.worker import serve
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

_TABLES = {"ggml": BUILDERS, "ggml-flash": FLASH_BUILDERS, "ggml-direct": DIRECT_BUILDERS}


def main(place: str, n_threads: str) -> None:
    """Answer {"describe": true} and {"op": ..., "params": ..., "engine": ...} until stdin closes."""
    try:
        library = Library(Path(place))
        backend = library.cpu_backend(int(n_threads))
    except BadInput as error:
        sys.exit(str(error))

    def answer(header, inputs):
        if "describe" in header:
            offers = {
                name: [op for op, builder in table.items() if all(f in library for f in builder.needs)]
                for name, table in _TABLES.items()
            }
            return {"version": library.version(), "ops": offers, "lacks": library.lacks()}, {}
        table = _TABLES[header["engine"]]
        with Graph(library, backend) as graph:
            y = graph.compute(table[header["op"]].build(graph, inputs, header["params"]))
        if header["op"] == "im2col":
            y = np.swapaxes(y, 1, 2).astype(np.float32)
        return {}, {"y": stored(np.ascontiguousarray(y))}

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
