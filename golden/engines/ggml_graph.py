"""The operations of golden/operations.py as ggml graphs.

ggml counts axes from the fastest: torch's [N, C, H, W] is ne = [W, H, C, N]. The bytes are the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.engines.ggml_library import InitParams, Library
from refsd.golden.tensor import SCALAR_TYPES, StoredTensor, stored
from refsd.kernels.attention import causal_mask
from refsd.kernels.quant import BLOCK_TYPES

SCALAR_IDS = {"f32": 0, "f16": 1, "i32": 26, "bf16": 30}
_POISON = 0xFF  # as a float32 or float16: NaN
_MAX_TENSORS = 64


class Result(NamedTuple):
    """
    tensor: ggml_tensor *
    shape:  in torch's order
    dtype:  of its elements
    """

    tensor: int
    shape: tuple[int, ...]
    dtype: type = np.float32


def type_id(type_name: str) -> int:
    """ggml's number of a storage type. Raises ValueError where ggml has none."""
    if type_name in SCALAR_IDS:
        return SCALAR_IDS[type_name]
    if type_name in BLOCK_TYPES:
        return BLOCK_TYPES[type_name].ggml_id
    raise ValueError(f"ggml has no type {type_name}")


class Graph:
    """A graph under construction: `put` an input, chain ggml's functions, `compute`."""

    def __init__(self, library: Library, backend: int):
        self.ggml = library
        self.backend = backend
        size = library.ggml_tensor_overhead() * _MAX_TENSORS + library.ggml_graph_overhead()
        self.context = library.ggml_init(InitParams(size, None, True))
        self._inputs: list[tuple[int, np.ndarray]] = []

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, *error) -> None:
        self.ggml.ggml_free(self.context)

    def put(self, tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> int:
        """An input in its own storage type (float64 as float32, int64 as int32); shape: another view of it."""
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
        """An input as float32."""
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

    def compute(self, result: Result) -> np.ndarray:
        """Allocate, poison, fill the inputs, run, fetch."""
        ggml = self.ggml
        graph = ggml.ggml_new_graph(self.context)
        ggml.ggml_build_forward_expand(graph, result.tensor)
        buffer = ggml.ggml_backend_alloc_ctx_tensors(self.context, self.backend)
        if not buffer:
            raise MemoryError("ggml could not allocate the graph's tensors")
        try:
            ggml.ggml_backend_buffer_clear(buffer, _POISON)
            for pointer, data in self._inputs:
                ggml.ggml_backend_tensor_set(pointer, data.ctypes.data, 0, data.nbytes)
            status = ggml.ggml_backend_graph_compute(self.backend, graph)
            if status != 0:
                raise RuntimeError(f"ggml_backend_graph_compute returned {status}")
            y = np.empty(result.shape, result.dtype)
            held = ggml.ggml_nbytes(result.tensor)
            if held != y.nbytes:
                raise RuntimeError(f"ggml's result has {held} bytes, {result.shape} needs {y.nbytes}")
            ggml.ggml_backend_tensor_get(result.tensor, y.ctypes.data, 0, y.nbytes)
            return y
        finally:
            ggml.ggml_backend_buffer_free(buffer)

    def __getattr__(self, name: str):
        """ggml_<name> with the context as its first argument."""
        function = getattr(self.ggml, f"ggml_{name}")
        return lambda *arguments: function(self.context, *arguments)


Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]


def _linear(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, weight = inputs["x"], inputs["weight"]
    K = x.shape[-1]
    y = g.mul_mat(g.put(weight), g.floats(x, (x.values().size // K, K)))
    if "bias" in inputs:
        y = g.add(y, g.floats(inputs["bias"]))
    return Result(y, (*x.shape[:-1], weight.shape[0]))


def _padded(g: Graph, x: int, padding) -> tuple[int, int, int]:
    """x, and the padding in W and H that is left to the convolution itself."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return x, left, top
    if top == left == 0:
        return g.pad(x, right, bottom, 0, 0), 0, 0
    return g.pad_ext(x, left, right, top, bottom, 0, 0, 0, 0), 0, 0


def _positions(size: int, before: int, after: int, taps: int, stride: int) -> int:
    return (size + before + after - taps) // stride + 1


def _conv2d(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, weight, stride = inputs["x"], inputs["weight"], params["stride"]
    N, _, H, W = x.shape
    K, _, R, S = weight.shape
    top, bottom, left, right = params["padding"]
    image, pad_w, pad_h = _padded(g, g.floats(x), params["padding"])
    y = g.conv_2d(g.put(weight), image, stride, stride, pad_w, pad_h, 1, 1)
    if "bias" in inputs:
        y = g.add(y, g.floats(inputs["bias"], (1, K, 1, 1)))
    return Result(y, (N, K, _positions(H, top, bottom, R, stride), _positions(W, left, right, S, stride)))


def _im2col(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, stride = inputs["x"], params["stride"]
    N, C, H, W = x.shape
    R, S = params["kernel"]
    top, bottom, left, right = params["padding"]
    image, pad_w, pad_h = _padded(g, g.floats(x), params["padding"])
    # The filter gives only its shape.
    filter_shape = g.put(stored(np.zeros((1, C, R, S), np.float16)))
    cols = g.im2col(filter_shape, image, stride, stride, pad_w, pad_h, 1, 1, True, SCALAR_IDS["f16"])
    P, Q = _positions(H, top, bottom, R, stride), _positions(W, left, right, S, stride)
    return Result(cols, (N, P * Q, C * R * S), np.float16)


def _group_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    y = g.group_norm(g.floats(inputs["x"]), params["num_groups"], params["eps"])
    channels = (1, shape[1], 1, 1)
    return Result(g.add(g.mul(y, g.floats(inputs["weight"], channels)), g.floats(inputs["bias"], channels)), shape)


def _layer_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.norm(g.floats(inputs["x"]), params["eps"])
    if "weight" in inputs:
        y = g.mul(y, g.floats(inputs["weight"]))
    if "bias" in inputs:
        y = g.add(y, g.floats(inputs["bias"]))
    return Result(y, inputs["x"].shape)


def _rms_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.mul(g.rms_norm(g.floats(inputs["x"]), params["eps"]), g.floats(inputs["weight"]))
    return Result(y, inputs["x"].shape)


def _unary(function: str) -> Callable[[Graph, Inputs, Params], Result]:
    def build(g: Graph, inputs: Inputs, params: Params) -> Result:
        return Result(getattr(g, function)(g.floats(inputs["x"])), inputs["x"].shape)

    return build


def _geglu(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    return Result(g.geglu_erf_swapped(g.floats(inputs["x"])), (*shape[:-1], shape[-1] // 2))


def _softmax(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    mask = None
    if "mask" in inputs:
        mask = g.put(stored(np.ascontiguousarray(np.broadcast_to(inputs["mask"].values(), shape), np.float32)))
    return Result(g.soft_max_ext(g.floats(inputs["x"]), mask, params["scale"], 0.0), shape)


def _mask(inputs: Inputs, params: Params) -> np.ndarray | None:
    """The mask as [B or 1, H or 1, L, J] in float32, or None."""
    L, J = inputs["q"].shape[1], inputs["k"].shape[1]
    if params["causal"]:
        return causal_mask(L, np.float32)[None, None]
    if "mask" not in inputs:
        return None
    mask = np.asarray(inputs["mask"].values(), np.float32)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], L, J)))


def _scale(inputs: Inputs, params: Params) -> float:
    return inputs["q"].shape[-1] ** -0.5 if params["scale"] is None else params["scale"]


def _attention(g: Graph, inputs: Inputs, params: Params) -> Result:
    q, k, v = (g.floats(inputs[name]) for name in ("q", "k", "v"))
    mask = _mask(inputs, params)
    by_head = [g.cont(g.permute(t, 0, 2, 1, 3)) for t in (q, k)]
    scores = g.mul_mat(by_head[1], by_head[0])
    weights = g.soft_max_ext(scores, None if mask is None else g.put(stored(mask)), _scale(inputs, params), 0.0)
    y = g.mul_mat(g.cont(g.permute(v, 1, 2, 0, 3)), weights)
    return Result(g.cont(g.permute(y, 0, 2, 1, 3)), inputs["q"].shape)


def _flash_attention(g: Graph, inputs: Inputs, params: Params) -> Result:
    q, k, v = (g.permute(g.floats(inputs[name]), 0, 2, 1, 3) for name in ("q", "k", "v"))
    mask = _mask(inputs, params)
    half = None if mask is None else g.put(stored(mask.astype(np.float16)))
    k, v = (g.cast(g.cont(t), SCALAR_IDS["f16"]) for t in (k, v))
    y = g.flash_attn_ext(g.cont(q), k, v, half, _scale(inputs, params), 0.0, 0.0)
    return Result(y, inputs["q"].shape)


def _timestep_embedding(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.timestep_embedding(g.floats(inputs["t"]), params["dim"], int(params["max_period"]))
    return Result(y, (inputs["t"].shape[0], params["dim"]))


def _upsample_nearest(g: Graph, inputs: Inputs, params: Params) -> Result:
    N, C, H, W = inputs["x"].shape
    factor = params["factor"]
    return Result(g.upscale(g.floats(inputs["x"]), factor, 0), (N, C, H * factor, W * factor))


def _embedding(g: Graph, inputs: Inputs, params: Params) -> Result:
    ids, weight = inputs["ids"], inputs["weight"]
    y = g.get_rows(g.put(weight), g.put(ids, (ids.data.size,)))
    return Result(y, (*ids.shape, weight.shape[1]))


def _dequantize(g: Graph, inputs: Inputs, params: Params) -> Result:
    x = inputs["x"]
    rows = int(np.prod(x.shape[:-1]))
    every = g.put(stored(np.arange(rows, dtype=np.int32)))
    return Result(g.get_rows(g.put(x, (rows, x.shape[-1])), every), x.shape)


class Builder(NamedTuple):
    """
    build: makes the graph
    needs: ggml functions without which it cannot
    """

    build: Callable[[Graph, Inputs, Params], Result]
    needs: tuple[str, ...]


BUILDERS: dict[str, Builder] = {
    "linear": Builder(_linear, ("ggml_mul_mat",)),
    "conv2d": Builder(_conv2d, ("ggml_conv_2d",)),
    "im2col": Builder(_im2col, ("ggml_im2col",)),
    "group_norm": Builder(_group_norm, ("ggml_group_norm",)),
    "layer_norm": Builder(_layer_norm, ("ggml_norm",)),
    "rms_norm": Builder(_rms_norm, ("ggml_rms_norm",)),
    "silu": Builder(_unary("silu"), ("ggml_silu",)),
    "gelu": Builder(_unary("gelu_erf"), ("ggml_gelu_erf",)),
    "gelu_tanh": Builder(_unary("gelu"), ("ggml_gelu",)),
    "quick_gelu": Builder(_unary("gelu_quick"), ("ggml_gelu_quick",)),
    "geglu": Builder(_geglu, ("ggml_geglu_erf_swapped",)),
    "softmax": Builder(_softmax, ("ggml_soft_max_ext",)),
    "attention": Builder(_attention, ("ggml_soft_max_ext",)),
    "timestep_embedding": Builder(_timestep_embedding, ("ggml_timestep_embedding",)),
    "upsample_nearest": Builder(_upsample_nearest, ("ggml_upscale",)),
    "embedding": Builder(_embedding, ("ggml_get_rows",)),
    "dequantize": Builder(_dequantize, ("ggml_get_rows",)),
}
FLASH_BUILDERS: dict[str, Builder] = {"attention": Builder(_flash_attention, ("ggml_flash_attn_ext",))}
