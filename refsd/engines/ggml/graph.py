"""Build and run a ggml graph.

ggml numbers axes from the fastest: torch's [N, C, H, W] is ne = [W, H, C, N]. The bytes are the same.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.engines.ggml.devices import Backend, Ran
from refsd.engines.ggml.library import InitParams
from refsd.engines.ggml.requests import Request, request
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored

SCALAR_IDS = {"f32": 0, "f16": 1, "i32": 26, "bf16": 30}
_POISON = 0xFF  # this byte repeated is NaN in float32 and float16
_MAX_TENSORS = 64


class Result(NamedTuple):
    """A node of the graph that holds the operation's answer.

    tensor: ggml_tensor *
    shape:  in torch's order
    dtype:  of the elements
    """

    tensor: int
    shape: tuple[int, ...]
    dtype: type = np.float32


def type_id(type_name: str) -> int:
    """Return ggml's type number of a storage type. Raises ValueError if ggml lacks the type."""
    if type_name in SCALAR_IDS:
        return SCALAR_IDS[type_name]
    if type_name in BLOCK_TYPES:
        return BLOCK_TYPES[type_name].ggml_id
    raise ValueError(f"ggml has no type {type_name}")


class Graph:
    """A graph under construction: `put` an input, chain ggml's functions, `compute` on the backend alone.

    wish: the precision to request of its products; None: none is requested
    """

    def __init__(self, backend: Backend, wish: Request | None = None):
        self.backend = backend
        self._wish = wish
        self.ggml = library = backend.library
        size = library.ggml_tensor_overhead() * _MAX_TENSORS + library.ggml_graph_overhead()
        self.context = library.ggml_init(InitParams(size, None, True))
        self._inputs: list[tuple[int, np.ndarray]] = []
        self._buffer = 0
        self._graph = 0

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, *error) -> None:
        if self._buffer:
            self.backend.release(self._buffer)
        self.ggml.ggml_free(self.context)

    def put(self, tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> int:
        """Add an input in its storage type (float64 as float32, int64 as int32). shape: view the data so."""
        if tensor.type in ("f64", "i64"):
            tensor = stored(tensor.data.astype(np.float32 if tensor.type == "f64" else np.int32))
        kind = type_id(tensor.type)
        self._check_block(tensor.type, kind)
        ne = tuple(reversed(shape or tensor.shape or (1,)))
        if len(ne) > 4:
            raise ValueError(f"ggml has four axes, not {len(ne)}")
        pointer = self.ggml.ggml_new_tensor_4d(self.context, kind, *ne, *(1,) * (4 - len(ne)))
        data = np.ascontiguousarray(tensor.data)
        if data.nbytes != self.ggml.ggml_nbytes(pointer):
            raise ValueError(f"{tensor.type} {tensor.shape}: ggml counts other bytes than the file format does")
        self._inputs.append((pointer, data))
        return pointer

    def floats(self, tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> int:
        """Add an input as float32. shape: view the data in this shape."""
        return self.put(stored(np.ascontiguousarray(tensor.values(), np.float32)), shape)

    def _check_block(self, type_name: str, kind: int) -> None:
        if type_name in SCALAR_TYPES:
            return
        ours = BLOCK_TYPES[type_name]
        theirs = (self.ggml.ggml_blck_size(kind), self.ggml.ggml_type_size(kind))
        if theirs != (ours.block, ours.bytes):
            raise ValueError(
                f"{type_name}: this libggml has {theirs} elements and bytes in a block, not {ours[2:4]}"
            )

    def compute(self, result: Result) -> tuple[np.ndarray, Ran]:
        """Allocate the graph, poison its memory, fill the inputs, run once. -> the result, where it was computed"""
        run = self.ready(result)
        run()
        return self.fetch(result), self.backend.ran(self._graph, self._buffer)

    def check(self, result: Result) -> None:
        """Raise UnsupportedNode if the device does not support a node of the graph."""
        self._graph = self.ggml.ggml_new_graph(self.context)
        self.ggml.ggml_build_forward_expand(self._graph, result.tensor)
        if self._wish is not None:
            for n in range(self.ggml.ggml_graph_n_nodes(self._graph)):
                request(self.ggml, self.ggml.ggml_graph_node(self._graph, n), self._wish)
        self.backend.check(self._graph)

    def ready(self, result: Result) -> Callable[[], None]:
        """Allocate the graph, poison its memory, fill the inputs. -> a function that runs the graph once

        Raises UnsupportedNode if the device does not support a node of the graph.
        """
        ggml = self.ggml
        self.check(result)
        self._buffer = ggml.ggml_backend_alloc_ctx_tensors(self.context, self.backend.handle)
        if not self._buffer:
            raise MemoryError("ggml could not allocate the graph's tensors")
        self._poison()
        for pointer, data in self._inputs:
            ggml.ggml_backend_tensor_set(pointer, data.ctypes.data, 0, data.nbytes)

        def run() -> None:
            status = ggml.ggml_backend_graph_compute(self.backend.handle, self._graph)
            if status != 0:
                raise RuntimeError(f"ggml_backend_graph_compute returned {status}")

        return run

    def _poison(self) -> None:
        """Fill every node, and what lies between them.

        ggml-vulkan's buffer_clear writes words of 0x000000FF where the CPU's writes bytes of 0xFF, so the nodes get
        theirs by tensor_set.
        """
        ggml = self.ggml
        ggml.ggml_backend_buffer_clear(self._buffer, _POISON)
        for n in range(ggml.ggml_graph_n_nodes(self._graph)):
            node = ggml.ggml_graph_node(self._graph, n)
            poison = np.full(ggml.ggml_nbytes(node), _POISON, np.uint8)
            ggml.ggml_backend_tensor_set(node, poison.ctypes.data, 0, poison.nbytes)

    def fetch(self, result: Result) -> np.ndarray:
        y = np.empty(result.shape, result.dtype)
        held = self.ggml.ggml_nbytes(result.tensor)
        if held != y.nbytes:
            raise RuntimeError(f"ggml's result has {held} bytes, {result.shape} needs {y.nbytes}")
        self.ggml.ggml_backend_tensor_get(result.tensor, y.ctypes.data, 0, y.nbytes)
        return y

    def __getattr__(self, name: str):
        """Return the function ggml_<name> with the context bound as its first argument."""
        function = getattr(self.ggml, f"ggml_{name}")
        return lambda *arguments: function(self.context, *arguments)
