"""The operations of every model as nodes: an Arithmetic that computes nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsd.kernels.attention import causal_mask
from refsd.kernels.attention_softcap import attention_softcap
from refsd.kernels.conv2d_fast import Choice
from refsd.kernels.pool import avg_pool2d
from refsd.kernels.rope import rope_angles
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.onnx.operations import FUNCTIONS
from refsd.onnx.operations.positions import turn
from refsd.onnx.trace.array import Graph, Traced, traced

_DIRECT = Choice("im2col", "a node of a graph")
# kernel, as `apply` is called with it -> the operation, the names of its arrays
_KERNELS = {
    "rms_norm": ("rms_norm", ("x", "weight")),
    "batch_norm": ("batch_norm", ("x", "mean", "var")),
    "tanh": ("tanh", ("x",)),
    "sigmoid": ("sigmoid", ("x",)),
    "relu": ("relu", ("x",)),
    "leaky_relu": ("leaky_relu", ("x",)),
}


class TracingArithmetic(Arithmetic):
    """graph: takes the nodes; its dtype is that of all floats"""

    def __init__(self, graph: Graph):
        super().__init__(FLOAT64 if graph.dtype == np.float64 else FLOAT32)
        self.graph = graph

    def _say(self, op: str, params: dict[str, Any] | None = None, **arrays) -> Traced:
        values = {name: traced(self.graph, x).value for name, x in arrays.items() if x is not None}
        return Traced(self.graph, FUNCTIONS[op](self.graph, values, params or {}))

    def store(self, x):
        return x

    def choose(self, x_shape, weight_shape, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1) -> Choice:
        return _DIRECT

    def apply(self, kernel: Callable[..., Any], *arrays, **params):
        """Run a kernel written in plain NumPy over traced arrays: it needs no rule."""
        if kernel.__name__ in _KERNELS:
            op, names = _KERNELS[kernel.__name__]
            return self._say(op, params, **dict(zip(names, arrays, strict=True)))
        if kernel is attention_softcap:
            q, k, v = arrays
            return self._say("attention_softcap", params, q=q, k=k, v=v, mask=params.pop("mask"))
        if kernel is avg_pool2d:
            return self._say("avg_pool2d", {**params, "count_include_pad": True}, x=arrays[0])
        return kernel(*arrays, **params)

    def linear(self, x, weight, bias=None, weight_type="f32"):
        return self._say("linear", x=x, weight=weight, bias=bias)

    def conv2d(self, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
        params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return self._say("conv2d", params, x=x, weight=weight, bias=bias)

    def conv3d(self, x, weight, bias, stride=1, padding=(0,) * 6, dilation=1, groups=1):
        params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return self._say("conv3d", params, x=x, weight=weight, bias=bias)

    def group_norm(self, x, weight, bias, num_groups=32, eps=1e-5):
        return self._say("group_norm", {"num_groups": num_groups, "eps": eps}, x=x, weight=weight, bias=bias)

    def layer_norm(self, x, weight=None, bias=None, eps=1e-5):
        return self._say("layer_norm", {"eps": eps}, x=x, weight=weight, bias=bias)

    def adaptive_layer_norm(self, x, shift, scale, eps=1e-6):
        return self._say("adaptive_layer_norm", {"eps": eps}, x=x, shift=shift, scale=scale)

    def rms_norm(self, x, weight, eps=1e-6):
        return self._say("rms_norm", {"eps": eps}, x=x, weight=weight)

    def rms_norm_apart(self, x, weight, eps=1e-6):
        return self.rms_norm(x, weight, eps)

    def silu(self, x):
        return self._say("silu", x=x)

    def gelu(self, x, approximate="none"):
        return self._say("gelu" if approximate == "none" else "gelu_tanh", x=x)

    def quick_gelu(self, x):
        return self._say("quick_gelu", x=x)

    def geglu(self, x):
        return self._say("geglu", x=x)

    def swiglu(self, x, second_gates=False):
        return self._say("swiglu", {"second_gates": second_gates}, x=x)

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        if diagonal is not None:
            seen = causal_mask(q.shape[1], np.float64, k.shape[1], diagonal)
            mask = seen if mask is None else mask + seen
        params = {"scale": scale, "causal": False, "diagonal": 0}
        return self._say("attention", params, q=q, k=k, v=v, mask=mask, sinks=sinks)

    def timestep_embedding(self, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
        params = {
            "dim": dim, "max_period": max_period, "freq_shift": freq_shift, "scale": scale, "sin_first": sin_first
        }  # fmt: skip
        return self._say("timestep_embedding", params, t=t)

    def upsample_nearest(self, x, factor=2):
        return self._say("upsample_nearest", {"factor": factor}, x=x)

    def halve(self, x):
        """Every other pixel."""
        return x[:, :, ::2, ::2]

    def text_projection(self, x, weight, kind):
        return self.linear(x, weight)

    def embedding(self, ids, weight):
        return self._say("embedding", ids=ids, weight=weight)

    def add(self, x, y):
        return np.add(traced(self.graph, x), y)

    def multiply(self, x, y):
        return np.multiply(traced(self.graph, x), y)

    def l2_norm(self, x, eps=1e-12):
        return self._say("l2_norm", {"eps": eps}, x=x)

    def modulate(self, x, shift, scale):
        return self._say("modulate", x=x, shift=shift, scale=scale)

    def gated_add(self, x, h, gate):
        return self._say("gated_add", x=x, h=h, gate=gate)

    def rope_angles(self, ids, axes_dim, theta):
        """Positions do not depend on a graph's inputs: their angles are constants, made in float64."""
        return rope_angles(ids, axes_dim, theta)

    def rope(self, x, angle):
        return self._turned(x, angle, False)

    def rope_halves(self, x, angle):
        return self._turned(x, angle, True)

    def _turned(self, x: Traced, angle, halves: bool) -> Traced:
        b = self.graph
        if isinstance(angle, Traced):
            wide = b.node("Unsqueeze", angle.value, [2])
            c, s = b.node("Cos", wide), b.node("Sin", wide)
        else:
            wide = np.asarray(angle, np.float64)[:, :, None]
            c, s = b.constant(np.cos(wide)), b.constant(np.sin(wide))
        return Traced(b, turn(b, x.value, c, s, halves))
