"""Run libggml in a process of its own: `python -m refsd.engines.ggml.worker LIBRARY THREADS [DEVICE]`."""

import functools
import math
import sys
from pathlib import Path

import numpy as np

from refsd.engines.ggml.devices import Backend, UnsupportedNode, devices
from refsd.engines.ggml.graph import Graph
from refsd.engines.ggml.library import Library
from refsd.engines.ggml.ops import BUILDERS, DIRECT_BUILDERS, FLASH_BUILDERS, REQUESTED_BUILDERS
from refsd.engines.ggml.requests import PREFIX, REQUESTS, offered, request_of
from refsd.engines.worker import serve
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored

_TABLES = {"ggml": BUILDERS, "ggml-flash": FLASH_BUILDERS, "ggml-direct": DIRECT_BUILDERS}
_TABLES |= {PREFIX + name: REQUESTED_BUILDERS for name in REQUESTS}


def main(place: str, n_threads: str, device: str = "") -> None:
    """Answer requests until stdin closes.

    {"devices": true}                                               -> the library's devices; none is started
    {"describe": true}                                              -> the library and the device, which is started
    {"supports": ..., "inputs": {name: [type, shape]}, ...}         -> why the device cannot compute an operation
    {"op": ..., "params": ..., "engine": ...} and the input tensors -> the answer, and where it was computed
    """
    try:
        library = Library(Path(place))
    except BadInput as error:
        sys.exit(str(error))

    @functools.cache
    def backend() -> Backend:
        return Backend(library, device, int(n_threads))

    def describe() -> dict:
        offers = {
            name: [op for op, builder in table.items() if all(f in library for f in builder.needs)]
            for name, table in _TABLES.items()
        }
        try:
            started = backend()
        except BadInput as error:
            return {"unfit": str(error)}
        where = {"device": started.device, "buffer": started.buffer}
        return {
            "version": library.version(started.device.backend),
            "ops": offers,
            "requests": offered(library),
            "lacks": library.lacks(),
            **where,
        }

    def lacks(header) -> str:
        inputs = {name: _zeros(kind, tuple(shape)) for name, (kind, shape) in header["inputs"].items()}
        with Graph(backend(), request_of(header["engine"])) as graph:
            try:
                graph.check(_TABLES[header["engine"]][header["supports"]].build(graph, inputs, header["params"]))
            except UnsupportedNode as missing:
                return str(missing)
        return ""

    def answer(header, inputs):
        if "devices" in header:
            return {"devices": devices(library)}, {}
        if "describe" in header:
            return describe(), {}
        if "supports" in header:
            return {"lacks": lacks(header)}, {}
        with Graph(backend(), request_of(header["engine"])) as graph:
            y, ran = graph.compute(_TABLES[header["engine"]][header["op"]].build(graph, inputs, header["params"]))
        if header["op"] == "im2col":
            y = np.swapaxes(y, 1, 2).astype(np.float32)
        return {"ran": ran._asdict()}, {"y": stored(np.ascontiguousarray(y))}

    serve(answer)


def _zeros(kind: str, shape: tuple[int, ...]) -> StoredTensor:
    if kind in SCALAR_TYPES:
        return stored(np.zeros(shape, SCALAR_TYPES[kind]))
    block_type = BLOCK_TYPES[kind]
    return StoredTensor(kind, shape, np.zeros(math.prod(shape) // block_type.block * block_type.bytes, np.uint8))


if __name__ == "__main__":
    main(*sys.argv[1:])
