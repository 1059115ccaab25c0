"""The engine jax: each operation by JAX's own functions, jitted, in a process of its own.

The process is `python -m refsd.engines.jax DEVICE PRECISION`.
"""

import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import replace
from functools import partial

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
from refsd.numerics.profiles import TORCH_BF16, TORCH_BF16_PRODUCTS, TORCH_F16, TORCH_F32, TORCH_TF32

_F32 = replace(TORCH_F32, name="jax-f32")
# What follows the engine's name -> dtype and rounding: XLA's CPU code computes in float32 and rounds results.
_VARIANTS = {
    "": ("float32", _F32),
    "-f16": ("float16", replace(TORCH_F16, name="jax-f16")),
    "-bf16": ("bfloat16", replace(TORCH_BF16, name="jax-bf16")),
}
# Devices that round the factors of float32 products unless the precision is "highest": jax.lax.Precision.
_SHORTENED = {
    "cuda": replace(TORCH_TF32, name="jax-tf32"),
    "tpu": replace(TORCH_BF16_PRODUCTS, name="jax-bf16-products"),
}
_DEVICES = ("cpu", "cuda", "tpu", "metal")
_PRECISIONS = ("default", "highest")


def find(path: str | None = None, device: str | None = None, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed JAX. path: the precision of float32 products, "default" (None means it) or "highest"."""
    precision, device = path or "default", (device or "cpu").lower()
    name = "jax" + ("" if precision == "default" else f"-{precision}") + ("" if device == "cpu" else f"@{device}")
    if importlib.util.find_spec("jax") is None:
        return [EngineSearch(name, None, how_to_install("jax"))]
    if precision not in _PRECISIONS:
        return [EngineSearch(name, None, f"no precision {path!r}: expected jax:default or jax:highest")]
    if device not in _DEVICES:
        return [EngineSearch(name, None, f"no device {device!r}: expected one of {', '.join(_DEVICES)}")]
    variants = _VARIANTS if precision == "default" else {"": _VARIANTS[""]}
    if precision == "default":
        variants = variants | {"": ("float32", _SHORTENED.get(device, _F32))}
    worker = Worker(["-m", "refsd.engines.jax", device, precision], timeout)
    return array_engines(LIBRARY, name, importlib.metadata.version("jax"), variants, worker, device == "cpu")


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed jax; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("jax") is None:
        return []
    return list_devices("refsd.engines.jax", "default")


_NAMES = Names(
    lambda jax: jax.numpy,
    silu=lambda jax, x: jax.nn.silu(x),
    gelu=lambda jax, x: jax.nn.gelu(x, approximate=False),
    sigmoid=lambda jax, x: jax.nn.sigmoid(x),
    softmax=lambda jax, x: jax.nn.softmax(x, axis=-1),
)


def _attention(jax, x, params):
    q, k = x["q"], x["k"]
    B, L, H, _ = q.shape
    J = k.shape[1]
    bias = jax.numpy.broadcast_to(x["mask"], (B, H, L, J)) if "mask" in x else None
    corner = params["causal"] and params["diagonal"] == 0
    seen = None
    if params["causal"] and not corner:
        seen = jax.numpy.tril(jax.numpy.ones((1, 1, L, J), bool), params["diagonal"])
    return jax.nn.dot_product_attention(q, k, x["v"], bias=bias, mask=seen, scale=params["scale"], is_causal=corner)


def _no_attention(case: Case) -> str | None:
    if "sinks" in case.inputs:
        return "jax.nn.dot_product_attention has no sinks"
    if case.inputs["k"].shape != case.inputs["v"].shape:
        return "jax.nn.dot_product_attention wants keys and values of one shape"
    return "jax.nn.dot_product_attention gives no zeros to a query that sees no key" if hides_rows(case) else None


# Products and convolutions by jax.lax.

_LAYOUT = {2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def _each(number, axes: int) -> tuple[int, ...]:
    return (number,) * axes if isinstance(number, int) else tuple(number)


def _sides(padding) -> list[tuple[int, int]]:
    return [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]


def convolve(jax, x, weight, stride, padding, dilation=1, groups=1):
    axes = x.ndim - 2
    return jax.lax.conv_general_dilated(
        x,
        weight,
        window_strides=_each(stride, axes),
        padding=_sides(padding),
        rhs_dilation=_each(dilation, axes),
        dimension_numbers=_LAYOUT[axes],
        feature_group_count=groups,
    )


def _convolution(jax, x, params):
    y = convolve(jax, x["x"], x["weight"], *(params[name] for name in ("stride", "padding", "dilation", "groups")))
    return y + x["bias"].reshape(-1, *(1,) * (y.ndim - 2)) if "bias" in x else y


def _im2col(jax, x, params):
    y = jax.lax.conv_general_dilated_patches(
        x["x"],
        filter_shape=tuple(params["kernel"]),
        window_strides=_each(params["stride"], 2),
        padding=_sides(params["padding"]),
        rhs_dilation=_each(params["dilation"], 2),
        dimension_numbers=_LAYOUT[2],
    )
    return y.reshape(*y.shape[:2], -1)


def _linear(jax, x, params):
    y = jax.numpy.dot(x["x"], x["weight"].T)
    return y + x["bias"] if "bias" in x else y


# Normalisations by jax.nn.standardize, in float32 whatever the dtype of x, as Flax's layers have it.


def _layer_norm(jax, x, params):
    y = _standardized(jax, x["x"], params["eps"])
    y = y * x["weight"] if "weight" in x else y
    y = y + x["bias"] if "bias" in x else y
    return y.astype(x["x"].dtype)


def _standardized(jax, x, eps):
    return jax.nn.standardize(x.astype("float32"), axis=-1, epsilon=eps)


def _group_norm(jax, x, params):
    N, C, H, W = x["x"].shape
    y = _standardized(jax, x["x"].reshape(N, params["num_groups"], -1), params["eps"]).reshape(N, C, H, W)
    y = y * x["weight"][:, None, None] + x["bias"][:, None, None]
    return y.astype(x["x"].dtype)


def _rms_norm(jax, x, params):
    wide = x["x"].astype("float32")
    y = wide * jax.lax.rsqrt(jax.numpy.mean(wide**2, axis=-1, keepdims=True) + params["eps"])
    return (y * x["weight"] if "weight" in x else y).astype(x["x"].dtype)


def _batch_norm(jax, x, params):
    mean, var = (x[name][:, None, None] for name in ("mean", "var"))
    return jax.nn.standardize(x["x"], mean=mean, variance=var, epsilon=params["eps"])


# Embeddings of position and time, composed in float32 as users of JAX write them.


def _angles(jax, ids, params):
    """ids [N, L, A] -> [N, L, 1, pairs]"""
    jnp = jax.numpy
    parts = [
        ids[..., axis, None].astype("float32") / params["theta"] ** (jnp.arange(0, dim, 2, dtype="float32") / dim)
        for axis, dim in enumerate(params["axes_dim"])
    ]
    return jnp.concatenate(parts, axis=-1)[:, :, None]


def _rope(jax, x, params):
    jnp = jax.numpy
    angle, turned = _angles(jax, x["ids"], params), sum(params["axes_dim"])
    wide, rest = x["x"][..., :turned].astype("float32"), x["x"][..., turned:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(wide, 2, axis=-1) if params["halves"] else (wide[..., 0::2], wide[..., 1::2])
    pair = [a * cos - b * sin, a * sin + b * cos]
    y = jnp.concatenate(pair, axis=-1) if params["halves"] else jnp.stack(pair, axis=-1).reshape(wide.shape)
    return jnp.concatenate([y.astype(rest.dtype), rest], axis=-1)


# Resampling by jax.image, pooling by jax.lax.reduce_window.


def _upsample_nearest(jax, x, params):
    N, C, H, W = x["x"].shape
    return jax.image.resize(x["x"], (N, C, H * params["factor"], W * params["factor"]), "nearest")


def _resize(method: str) -> Function:
    def resized(jax, x, params):
        """jax.image.resize antialiases by default, so the choice is given."""
        size = (*x["x"].shape[:2], params["height"], params["width"])
        return jax.image.resize(x["x"], size, method, antialias=params["antialias"])

    return resized


def _window(params):
    frame = [(pad, pad) for pad in params["padding"]]
    return (1, 1, *params["kernel_size"]), (1, 1, *params["stride"]), [(0, 0), (0, 0), *frame]


def _max_pool2d(jax, x, params):
    return jax.lax.reduce_window(x["x"], -jax.numpy.inf, jax.lax.max, *_window(params))


def _avg_pool2d(jax, x, params):
    """Count the pixels of a window as flax.linen.avg_pool does."""
    total = jax.lax.reduce_window(x["x"], 0.0, jax.lax.add, *_window(params))
    if params["count_include_pad"]:
        return total / (params["kernel_size"][0] * params["kernel_size"][1])
    return total / jax.lax.reduce_window(jax.numpy.ones_like(x["x"]), 0.0, jax.lax.add, *_window(params))


def _no_corners(case: Case) -> str | None:
    if case.params.get("factors"):
        return "jax.image.resize takes the new size alone"
    return "jax.image.resize has no align_corners" if case.params.get("align_corners") else None


def _no_cubic(case: Case) -> str | None:
    # jax/_src/image/scale.py, _keys_cubic_kernel
    other = None if case.params.get("antialias") else "jax.image.resize's cubic has a = -1/2, not -3/4"
    return _no_corners(case) or other


# Padding, rolling, joining and lookup by jax.numpy.

_MODES = {"zero": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}


def _pad(jax, x, params):
    top, bottom, left, right = params["padding"]
    return jax.numpy.pad(x["x"], ((0, 0), (0, 0), (top, bottom), (left, right)), mode=_MODES[params["mode"]])


LIBRARY = Library(
    "jax",
    functions={
        **composed(lambda x, axes: x.transpose(axes)),
        **adapters(convolve),
        **numpy_like(_NAMES),
        "gelu_tanh": lambda jax, x, params: jax.nn.gelu(x["x"], approximate=True),
        "quick_gelu": lambda jax, x, params: x["x"] * jax.nn.sigmoid(1.702 * x["x"]),
        "relu": lambda jax, x, params: jax.nn.relu(x["x"]),
        "leaky_relu": lambda jax, x, params: jax.nn.leaky_relu(x["x"], params["slope"]),
        "attention": _attention,
        "linear": _linear,
        "conv2d": _convolution,
        "conv3d": _convolution,
        "im2col": _im2col,
        "group_norm": _group_norm,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "batch_norm": _batch_norm,
        "group_norm_silu": lambda jax, x, params: jax.nn.silu(_group_norm(jax, x, params)),
        "adaptive_layer_norm": lambda jax, x, params: modulated(_layer_norm(jax, {"x": x["x"]}, params), x),
        "rope": _rope,
        "upsample_nearest": _upsample_nearest,
        "resize_bilinear": _resize("bilinear"),
        "resize_bicubic": _resize("bicubic"),
        "avg_pool2d": _avg_pool2d,
        "max_pool2d": _max_pool2d,
        "pad": _pad,
        "embedding": lambda jax, x, params: jax.numpy.take(x["weight"], x["ids"], axis=0),
    },
    refusals={"attention": _no_attention, "resize_bilinear": _no_corners, "resize_bicubic": _no_cubic},
    # jax/_src/nn/functions.py, standardize: algorithm "fast" is the default, E[x^2] - E[x]^2, clipped at 0.
    rounding={
        norm: {"one_pass": ("group_norm", "layer_norm")}
        for norm in ("group_norm", "layer_norm", "group_norm_silu", "adaptive_layer_norm")
    },
    # Inferred from the answers: XLA's code for float16 and bfloat16 rounds between operations, unless a function
    # widens first.
    rounded=dict.fromkeys(
        (
            *("softmax", "silu", "sigmoid", "leaky_relu", "swiglu"),
            *("avg_pool2d", "resize_bilinear", "resize_bicubic"),
        ),
        "jitted by XLA it rounds between its steps to the dtype, which no profile declares",
    ),
)


def main(device: str, precision: str) -> None:
    # A GPU is shared with whatever else runs there; nothing but the named device may answer.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if device != ANY:
        os.environ["JAX_PLATFORMS"] = device
    import jax

    try:
        place = jax.devices()[0]
    except RuntimeError as error:
        sys.exit(f"jax: {error}")

    def compute(op, params, tensors):
        function = jax.jit(partial(_call, LIBRARY.functions[op], jax, params))
        with jax.default_matmul_precision(precision), jax.default_device(place):
            y = function({name: jax.numpy.asarray(x) for name, x in tensors.items()})
        if y.devices() != {place}:
            raise RuntimeError(f"the answer lies on {y.devices()}, not on {place}")
        return np.asarray(y)

    serve_arrays(compute, lambda: [(one.platform, one.device_kind) for one in jax.devices()])


def _call(function, jax, params, tensors):
    return function(jax, tensors, params)


if __name__ == "__main__":
    main(*sys.argv[1:])
