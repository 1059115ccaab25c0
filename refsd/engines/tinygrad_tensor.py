"""The engine tinygrad-tensor: each operation by Tensor's own methods, in a process of its own that calls clang.

The process is `python -m refsd.engines.tinygrad_tensor DEVICE CLANG`.
"""

import importlib.metadata
import importlib.util
import math
import os
import sys
from dataclasses import replace

from refsd.engines.arrays.adapters import adapters
from refsd.engines.arrays.array_engine import Library, array_engines
from refsd.engines.arrays.composed import composed, modulated
from refsd.engines.arrays.devices import Device, list_devices
from refsd.engines.arrays.worker import ANY, serve_arrays
from refsd.engines.hidden_rows import hides_rows
from refsd.engines.tinygrad import MISSING, find_clang
from refsd.engines.worker import Worker
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_F32

_VARIANTS = {"": ("float32", replace(TORCH_F32, name="tinygrad-f32"))}


def find(path: str | None = None, device: str | None = None, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed tinygrad. device: as tinygrad's DEV names it, "CPU" (None means it), "CUDA", "METAL", ..."""
    device = (device or "cpu").upper()
    name = "tinygrad-tensor" if device == "CPU" else f"tinygrad-tensor@{device.lower()}"
    if path is not None:
        return [EngineSearch(name, None, f"tinygrad has no {path!r}: expected tinygrad-tensor alone")]
    if importlib.util.find_spec("tinygrad") is None:
        return [EngineSearch(name, None, f"{how_to_install('tinygrad')}; on the CPU it needs clang")]
    compiler = find_clang()
    if device == "CPU" and compiler is None:
        return [EngineSearch(name, None, MISSING)]
    worker = Worker(["-m", "refsd.engines.tinygrad_tensor", device, compiler or ""], timeout)
    version = importlib.metadata.version("tinygrad")
    return array_engines(LIBRARY, name, version, _VARIANTS, worker, device == "CPU")


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed tinygrad; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("tinygrad") is None:
        return []
    return list_devices("refsd.engines.tinygrad_tensor", find_clang() or "")


# Activations by Tensor's methods.


def _geglu(tinygrad, x, params):
    value, gate = x["x"].chunk(2, dim=-1)
    return value * gate.gelu("none")


def _swiglu(tinygrad, x, params):
    first, second = x["x"].chunk(2, dim=-1)
    return first * second.silu() if params["second_gates"] else first.silu() * second


def _swiglu_oai(tinygrad, x, params):
    """As openai/gpt-oss writes it."""
    gate = x["gate"].minimum(params["limit"])
    value = x["value"].clip(-params["limit"], params["limit"])
    return gate * (params["alpha"] * gate).sigmoid() * (value + 1)


# Softmax and attention by Tensor.scaled_dot_product_attention.


def _softmax(tinygrad, x, params):
    scores = x["x"] * params["scale"]
    scores = scores + x["mask"] if "mask" in x else scores
    if "sinks" not in x:
        return scores.softmax(-1)
    column = x["sinks"][:, None, None].expand(*scores.shape[:-1], 1)
    return scores.cat(column, dim=-1).softmax(-1)[..., :-1]


def _attention(tinygrad, x, params):
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    corner = params["causal"] and params["diagonal"] == 0 and "mask" not in x
    mask = x.get("mask")
    if params["causal"] and not corner:
        shape = (q.shape[2], k.shape[2])
        seen = tinygrad.Tensor.ones(*shape, dtype=tinygrad.dtypes.bool).tril(params["diagonal"])
        mask = seen if mask is None else seen.where(mask, -float("inf"))
    y = q.scaled_dot_product_attention(k, v, mask, is_causal=corner, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2)


def _no_attention(case: Case) -> str | None:
    if "sinks" in case.inputs:
        return "Tensor.scaled_dot_product_attention has no sinks"
    if case.params.get("scale") is not None:
        return "Tensor.scaled_dot_product_attention takes no scale"
    hidden = hides_rows(case)
    return "Tensor.scaled_dot_product_attention gives no zeros to a query that sees no key" if hidden else None


# Products and convolutions by Tensor.linear and Tensor.conv2d, which takes any number of axes.


def convolve(tinygrad, x, weight, stride, padding, dilation=1, groups=1, bias=None):
    sides = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    # Tensor.conv2d counts from the last axis.
    last_first = [n for side in reversed(sides) for n in side]
    stride, dilation = (n if isinstance(n, int) else tuple(n) for n in (stride, dilation))
    return x.conv2d(weight, bias, groups=groups, stride=stride, dilation=dilation, padding=last_first)


def _convolution(tinygrad, x, params):
    how = {name: params[name] for name in ("stride", "padding", "dilation", "groups")}
    return convolve(tinygrad, x["x"], x["weight"], bias=x.get("bias"), **how)


# Normalisations by tinygrad.nn and Tensor.layernorm.


def _group_norm(tinygrad, x, params):
    norm = tinygrad.nn.GroupNorm(params["num_groups"], x["x"].shape[1], params["eps"])
    norm.weight, norm.bias = x["weight"], x["bias"]
    return norm(x["x"])


def _layer_norm(tinygrad, x, params):
    y = x["x"].layernorm(eps=params["eps"])
    y = y * x["weight"] if "weight" in x else y
    return y + x["bias"] if "bias" in x else y


def _rms_norm(tinygrad, x, params):
    norm = tinygrad.nn.RMSNorm(x["x"].shape[-1], params["eps"], elementwise_affine=False)
    norm.weight = x.get("weight")
    return norm(x["x"])


def _batch_norm(tinygrad, x, params):
    return x["x"].batchnorm(None, None, x["mean"], (x["var"] + params["eps"]).rsqrt())


# Embeddings of position and time, composed in float32 as tinygrad's own models (extra/models, examples) do.


def _frequencies(tinygrad, pairs: int, rate: float):
    """exp(-rate i)"""
    return (tinygrad.Tensor.arange(pairs, dtype=tinygrad.dtypes.float32) * -rate).exp()


def _timestep_embedding(tinygrad, x, params):
    half = params["dim"] // 2
    f = _frequencies(tinygrad, half, math.log(params["max_period"]) / (half - params["freq_shift"]))
    angle = params["scale"] * x["t"].float()[:, None] * f
    parts = [angle.sin(), angle.cos()] if params["sin_first"] else [angle.cos(), angle.sin()]
    return parts[0].cat(parts[1], dim=-1).pad(((0, 0), (0, params["dim"] % 2)))


def _rope(tinygrad, x, params):
    Tensor, ids, turned = tinygrad.Tensor, x["ids"].float(), sum(params["axes_dim"])
    parts = [
        ids[..., axis : axis + 1] * _frequencies(tinygrad, dim // 2, 2 * math.log(params["theta"]) / dim)
        for axis, dim in enumerate(params["axes_dim"])
    ]
    angle = Tensor.cat(*parts, dim=-1)[:, :, None]
    first, rest = x["x"][..., :turned], x["x"][..., turned:]
    a, b = first.chunk(2, dim=-1) if params["halves"] else (first[..., 0::2], first[..., 1::2])
    pair = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    y = Tensor.cat(*pair, dim=-1) if params["halves"] else Tensor.stack(*pair, dim=-1).reshape(first.shape)
    return y.cat(rest, dim=-1) if rest.shape[-1] else y


def _sincos_positions(tinygrad, x, params):
    quarter = params["dim"] // 4
    f = _frequencies(tinygrad, quarter, math.log(10000.0) / quarter)
    row, column = (x[name].float()[:, None] * f for name in ("rows", "columns"))
    shape = (row.shape[0], column.shape[0], quarter)
    angles = [column[None].expand(shape), row[:, None].expand(shape)]
    parts = [part for angle in angles for part in (angle.sin(), angle.cos())]
    return tinygrad.Tensor.cat(*parts, dim=-1).reshape(-1, params["dim"])


# Resampling and pooling by Tensor's methods.


def _upsample_nearest(tinygrad, x, params):
    return x["x"].interpolate(tuple(n * params["factor"] for n in x["x"].shape[2:]), "nearest")


def _resize_nearest(tinygrad, x, params):
    return x["x"].interpolate((params["height"], params["width"]), "nearest")


def _resize_bilinear(tinygrad, x, params):
    return x["x"].interpolate((params["height"], params["width"]), "linear", params["align_corners"])


def _window(params):
    """Tensor's padding, from the last axis on, before and after."""
    top, left = params["padding"]
    sides = (left, left, top, top)
    return {"kernel_size": tuple(params["kernel_size"]), "stride": tuple(params["stride"]), "padding": sides}


def _avg_pool2d(tinygrad, x, params):
    return x["x"].avg_pool2d(**_window(params), count_include_pad=params["count_include_pad"])


def _no_antialias(case: Case) -> str | None:
    if case.params.get("factors"):
        return "Tensor.interpolate takes the new size alone"
    return "Tensor.interpolate has no antialias" if case.params.get("antialias") else None


# Padding, rolling, joining and lookup by Tensor's methods.

_MODES = {"zero": "constant", "replicate": "replicate", "reflect": "reflect", "circular": "circular"}


def _pad(tinygrad, x, params):
    top, bottom, left, right = params["padding"]
    return x["x"].pad((left, right, top, bottom), mode=_MODES[params["mode"]])


LIBRARY = Library(
    "tinygrad",
    functions={
        **composed(lambda x, axes: x.permute(axes)),
        **adapters(convolve),
        "silu": lambda tinygrad, x, params: x["x"].silu(),
        "gelu": lambda tinygrad, x, params: x["x"].gelu("none"),
        "gelu_tanh": lambda tinygrad, x, params: x["x"].gelu("tanh"),
        "quick_gelu": lambda tinygrad, x, params: x["x"].quick_gelu(),
        "geglu": _geglu,
        "sigmoid": lambda tinygrad, x, params: x["x"].sigmoid(),
        "tanh": lambda tinygrad, x, params: x["x"].tanh(),
        "relu": lambda tinygrad, x, params: x["x"].relu(),
        "leaky_relu": lambda tinygrad, x, params: x["x"].leaky_relu(params["slope"]),
        "swiglu": _swiglu,
        "swiglu_oai": _swiglu_oai,
        "softmax": _softmax,
        "attention": _attention,
        "linear": lambda tinygrad, x, params: x["x"].linear(x["weight"].T, x.get("bias")),
        "conv2d": _convolution,
        "conv3d": _convolution,
        "group_norm": _group_norm,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "l2_norm": lambda tinygrad, x, params: x["x"].normalize(dim=-1, eps=params["eps"]),
        "batch_norm": _batch_norm,
        "group_norm_silu": lambda tinygrad, x, params: _group_norm(tinygrad, x, params).silu(),
        "adaptive_layer_norm": lambda tinygrad, x, params: modulated(x["x"].layernorm(eps=params["eps"]), x),
        "timestep_embedding": _timestep_embedding,
        "rope": _rope,
        "sincos_positions": _sincos_positions,
        "upsample_nearest": _upsample_nearest,
        "resize_nearest": _resize_nearest,
        "resize_bilinear": _resize_bilinear,
        "avg_pool2d": _avg_pool2d,
        "max_pool2d": lambda tinygrad, x, params: x["x"].max_pool2d(**_window(params)),
        "pad": _pad,
        "roll": lambda tinygrad, x, params: x["x"].roll((params["down"], params["right"]), (2, 3)),
        "concat": lambda tinygrad, x, params: x["a"].cat(x["b"], dim=params["axis"]),
        "embedding": lambda tinygrad, x, params: x["weight"][x["ids"]],
    },
    refusals={"attention": _no_attention, "resize_bilinear": _no_antialias},
)


def main(device: str, compiler: str) -> None:
    if compiler:
        os.environ["CC"] = compiler
    if device != ANY:
        os.environ["DEV"] = device
    import tinygrad
    import tinygrad.nn

    if device not in (ANY, tinygrad.Device.DEFAULT):
        sys.exit(f"tinygrad computes on {tinygrad.Device.DEFAULT}, not on {device}")

    def compute(op, params, tensors):
        given = {name: tinygrad.Tensor(x, device=device).realize() for name, x in tensors.items()}
        y = LIBRARY.functions[op](tinygrad, given, params).contiguous().realize()
        return y.numpy()

    serve_arrays(
        compute,
        lambda: [(name, "by clang" if name == "CPU" else "") for name in tinygrad.Device.get_available_devices()],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
