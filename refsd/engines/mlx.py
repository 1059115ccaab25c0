"""The engine mlx: each operation by MLX's own functions, in a process of its own.

The process is `python -m refsd.engines.mlx DEVICE`.
"""

import importlib.metadata
import importlib.util
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np

from refsd.engines.arrays.adapters import adapters
from refsd.engines.arrays.array_engine import Library, array_engines
from refsd.engines.arrays.composed import Names, composed, modulated, numpy_like
from refsd.engines.arrays.devices import Device, list_devices
from refsd.engines.arrays.function import Function
from refsd.engines.arrays.worker import ANY, serve_arrays
from refsd.engines.hidden_rows import hides_rows
from refsd.engines.worker import Worker
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_BF16, TORCH_F16, TORCH_F32

# What follows the engine's name -> dtype and rounding.
_VARIANTS = {
    "": ("float32", replace(TORCH_F32, name="mlx-f32")),
    "-f16": ("float16", replace(TORCH_F16, name="mlx-f16")),
    "-bf16": ("bfloat16", replace(TORCH_BF16, name="mlx-bf16")),
}
_DEVICES = ("cpu", "metal", "cuda")


def find(path: str | None = None, device: str | None = None, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed MLX. device: "cpu" (None means it), "metal" or "cuda"."""
    device = (device or "cpu").lower()
    name = "mlx" if device == "cpu" else f"mlx@{device}"
    if path is not None:
        return [EngineSearch(name, None, f"mlx has no {path!r}: expected mlx alone")]
    if importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx.core") is None:
        return [EngineSearch(name, None, f"{how_to_install('mlx')}; on Linux it needs glibc 2.35")]
    if device not in _DEVICES:
        return [EngineSearch(name, None, f"no device {device!r}: expected one of {', '.join(_DEVICES)}")]
    version = importlib.metadata.version("mlx") + f" {sys.platform}"
    worker = Worker(["-m", "refsd.engines.mlx", device], timeout)
    return array_engines(LIBRARY, name, version, _VARIANTS, worker, device == "cpu")


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed mlx; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("mlx") is None:
        return []
    return list_devices("refsd.engines.mlx")


_NAMES = Names(
    lambda mlx: mlx.core,
    silu=lambda mlx, x: mlx.nn.silu(x),
    gelu=lambda mlx, x: mlx.nn.gelu(x),
    sigmoid=lambda mlx, x: mlx.core.sigmoid(x),
    softmax=lambda mlx, x: mlx.core.softmax(x, axis=-1, precise=True),
)


def _attention(mlx, x, params):
    """MLX's own "causal" aligns the last query with the last key: other diagonals are masks."""
    q, k, v = (x[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    L, J = q.shape[2], k.shape[2]
    mask = x.get("mask")
    if params["causal"]:
        corner = mask is None and params["diagonal"] == J - L
        seen = mlx.core.tril(mlx.core.ones((L, J), mlx.core.bool_), params["diagonal"])
        if corner:
            mask = "causal"
        elif mask is None:
            mask = seen
        else:
            mask = mlx.core.where(seen, mask, mlx.core.array(-mlx.core.inf, mask.dtype))
    scale = q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
    y = mlx.core.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=x.get("sinks"))
    return y.transpose(0, 2, 1, 3)


def _no_attention(case: Case) -> str | None:
    hidden = hides_rows(case)
    return "MLX's attention gives no zeros to a query that sees no key" if hidden else None


# Products and convolutions by MLX, whose pictures and filters have their channels last.


def channels_last(x):
    """[N, C, ...] -> [N, ..., C]"""
    return x.transpose(0, *range(2, x.ndim), 1)


def channels_first(x):
    """[N, ..., C] -> [N, C, ...]"""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def _each(number, axes: int) -> list[int]:
    return [number] * axes if isinstance(number, int) else list(number)


def convolve(mlx, x, weight, stride, padding, dilation=1, groups=1):
    axes = x.ndim - 2
    y = mlx.core.conv_general(
        channels_last(x),
        channels_last(weight),
        stride=_each(stride, axes),
        padding=(list(padding[0::2]), list(padding[1::2])),
        kernel_dilation=_each(dilation, axes),
        groups=groups,
    )
    return channels_first(y)


def _convolution(mlx, x, params):
    y = convolve(mlx, x["x"], x["weight"], *(params[name] for name in ("stride", "padding", "dilation", "groups")))
    return y + x["bias"].reshape(-1, *(1,) * (y.ndim - 2)) if "bias" in x else y


def _linear(mlx, x, params):
    """As mlx.nn.Linear has it."""
    if "bias" in x:
        return mlx.core.addmm(x["bias"], x["x"], x["weight"].T)
    return x["x"] @ x["weight"].T


def _no_groups(case: Case) -> str | None:
    return "mlx.core.conv_general has no groups in 3D" if case.params.get("groups", 1) > 1 else None


# Normalisations by mlx.core.fast and mlx.nn.


def _group_norm(mlx, x, params):
    C = x["x"].shape[1]
    norm = mlx.nn.GroupNorm(params["num_groups"], C, params["eps"], pytorch_compatible=True)
    norm.weight, norm.bias = x["weight"], x["bias"]
    return channels_first(norm(channels_last(x["x"])))


def _layer_norm(mlx, x, params):
    return mlx.core.fast.layer_norm(x["x"], x.get("weight"), x.get("bias"), params["eps"])


def _batch_norm(mlx, x, params):
    """As mlx.nn.BatchNorm computes in evaluation mode."""
    mean, var = (x[name][:, None, None] for name in ("mean", "var"))
    return (x["x"] - mean) * mlx.core.rsqrt(var + params["eps"])


def _adaptive_layer_norm(mlx, x, params):
    return modulated(mlx.core.fast.layer_norm(x["x"], None, None, params["eps"]), x)


# Embeddings of position and time: mlx.core.fast.rope; the others are composed.


def _rope(mlx, x, params):
    """One axis at a time. Tokens become items of the batch: mx.fast.rope takes one position for each item."""
    mx, ids = mlx.core, x["ids"]
    N, L, H, D = x["x"].shape
    ids = mx.broadcast_to(ids, (N, *ids.shape[1:])).reshape(N * L, -1)
    tokens = x["x"].reshape(N * L, H, 1, D)
    parts, start = [], 0
    for axis, dim in enumerate(params["axes_dim"]):
        last = axis == len(params["axes_dim"]) - 1
        part = tokens[..., start:] if last else tokens[..., start : start + dim]
        how = {"traditional": not params["halves"], "base": params["theta"], "scale": 1.0}
        parts.append(mx.fast.rope(part, dim, offset=ids[:, axis], **how))
        start += dim
    return mx.concatenate(parts, axis=-1).reshape(N, L, H, D)


def _one_axis_of_halves(case: Case) -> str | None:
    several = case.params.get("halves") and len(case.params["axes_dim"]) > 1
    return "mx.fast.rope halves a head for one axis alone" if several else None


# Resampling and pooling by mlx.nn.


def _factors(size, params) -> tuple[float, float]:
    return params["height"] / size[0], params["width"] / size[1]


def _upsample_nearest(mlx, x, params):
    return channels_first(mlx.nn.Upsample(params["factor"], "nearest")(channels_last(x["x"])))


def _resize(mode: str) -> Function:
    def resized(mlx, x, params):
        how = {name: params[name] for name in ("align_corners", "antialias") if name in params}
        upsample = mlx.nn.Upsample(_factors(x["x"].shape[2:], params), mode, **how)
        return channels_first(upsample(channels_last(x["x"])))

    return resized


def _pool(kind: str) -> Function:
    def pooled(mlx, x, params):
        window = (tuple(params[name]) for name in ("kernel_size", "stride", "padding"))
        return channels_first(getattr(mlx.nn, kind)(*window)(channels_last(x["x"])))

    return pooled


def _reachable(case: Case) -> str | None:
    """mlx/nn/layers/upsample.py: int(scale * N) numbers."""
    if case.params.get("factors"):
        return "mlx.nn.Upsample centres the new pixels on the picture, which a factor beside the sizes moves"
    size = case.inputs["x"].shape[2:]
    wanted = (case.params["height"], case.params["width"])
    made = tuple(int(f * n) for f, n in zip(_factors(size, case.params), size, strict=True))
    return (
        None if made == wanted else f"mlx.nn.Upsample takes factors, and gives {made} where {wanted} is asked for"
    )


def _counts_padding(case: Case) -> str | None:
    counted = case.params.get("count_include_pad", True) or not any(case.params.get("padding", ()))
    return None if counted else "mlx.nn.AvgPool2d counts the padding"


# Padding, rolling, joining and lookup by mlx.core.

_MODES = {"zero": "constant", "replicate": "edge", "reflect": "reflect"}


def _pad(mlx, x, params):
    top, bottom, left, right = params["padding"]
    return mlx.core.pad(x["x"], ((0, 0), (0, 0), (top, bottom), (left, right)), mode=_MODES[params["mode"]])


def _no_mode(case: Case) -> str | None:
    mode = case.params.get("mode", "zero")
    return None if mode in _MODES else f"mlx.core.pad has no {mode}"


LIBRARY = Library(
    "mlx",
    functions={
        **composed(lambda x, axes: x.transpose(axes)),
        **adapters(convolve),
        **numpy_like(_NAMES),
        "gelu_tanh": lambda mlx, x, params: mlx.nn.gelu_approx(x["x"]),
        "quick_gelu": lambda mlx, x, params: mlx.nn.gelu_fast_approx(x["x"]),
        "relu": lambda mlx, x, params: mlx.nn.relu(x["x"]),
        "leaky_relu": lambda mlx, x, params: mlx.nn.leaky_relu(x["x"], params["slope"]),
        "attention": _attention,
        "linear": _linear,
        "conv2d": _convolution,
        "conv3d": _convolution,
        "group_norm": _group_norm,
        "layer_norm": _layer_norm,
        "rms_norm": lambda mlx, x, params: mlx.core.fast.rms_norm(x["x"], x.get("weight"), params["eps"]),
        "batch_norm": _batch_norm,
        "group_norm_silu": lambda mlx, x, params: mlx.nn.silu(_group_norm(mlx, x, params)),
        "adaptive_layer_norm": _adaptive_layer_norm,
        "rope": _rope,
        "upsample_nearest": _upsample_nearest,
        "resize_bilinear": _resize("linear"),
        "resize_bicubic": _resize("cubic"),
        "avg_pool2d": _pool("AvgPool2d"),
        "max_pool2d": _pool("MaxPool2d"),
        "pad": _pad,
        "embedding": lambda mlx, x, params: x["weight"][x["ids"]],
    },
    refusals={
        "conv3d": _no_groups,
        "attention": _no_attention,
        "rope": _one_axis_of_halves,
        "resize_bilinear": _reachable,
        "resize_bicubic": _reachable,
        "avg_pool2d": _counts_padding,
        "pad": _no_mode,
    },
    rounded={
        # mlx/backend/cpu/unary_ops.h, Sigmoid: exp gives a number of the dtype, and so do the sums. That leaky_relu
        # rounds likewise is inferred from its answers.
        **dict.fromkeys(
            ("silu", "sigmoid", "leaky_relu"),
            "on the CPU MLX rounds between its steps to the dtype, which no profile declares",
        ),
        # Inferred from the answers: the fallbacks of mlx.core.fast (mlx/fast.cpp) were not read.
        "attention": "on the CPU MLX rounds scores and weights to the dtype, which no profile declares",
        "rope": "on the CPU mx.fast.rope rounds cosines and sines to the dtype, which no profile declares",
        "avg_pool2d": "MLX's mean rounds its sum to the dtype, which no profile declares",
    },
)


def main(device: str) -> None:
    import mlx.core as mx
    import mlx.nn
    import mlx.nn.layers

    kind = mx.cpu if device in ("cpu", ANY) else mx.gpu
    if not mx.is_available(kind):
        sys.exit(f"this MLX has no {device}")
    mx.set_default_device(mx.Device(kind, 0))

    def compute(op, params, tensors):
        y = LIBRARY.functions[op](mlx, {name: _given(mx, x) for name, x in tensors.items()}, params)
        mx.eval(y)
        if y.dtype == mx.bfloat16:
            return np.array(y.view(mx.uint16)).view(ml_dtypes.bfloat16)
        return np.array(y)

    def devices():
        gpu = "metal" if sys.platform == "darwin" else "cuda"
        return [("cpu", sys.platform), *([(gpu, "GPU")] if mx.is_available(mx.gpu) else [])]

    serve_arrays(compute, devices)


def _given(mx, x: np.ndarray):
    if x.dtype == ml_dtypes.bfloat16:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    return mx.array(x)


if __name__ == "__main__":
    main(*sys.argv[1:])
