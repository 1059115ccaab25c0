"""Module: the weights under a key prefix, and every operation that models perform on them.

Model files only call a Module's operations. The Module finds, expands and caches weights, rounds as the numerics
demand, applies adapters, and records taps.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from refsd.adapters import Adapters
from refsd.circular import CircularAxes
from refsd.kernels.conv2d_fast import Choice, bytes_of_prepared
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import StoredTensor
from refsd.taps import Taps

F = TypeVar("F", bound=Callable[..., Any])


class WeightCache:
    """Cache of expanded weights up to `budget` bytes; weights that do not fit are expanded at each use."""

    def __init__(self, budget: int = 0):
        self.budget = budget
        self._arrays: dict[str, Any] = {}

    def holds(self, key: str, nbytes: int) -> bool:
        """True if cached, or if it would fit in the budget."""
        return key in self._arrays or nbytes <= self.budget

    def get(self, key: str, expand: Callable[[], Any]) -> Any:
        """Return the cached value of a key, or expand it: an array, or another object with `nbytes`."""
        if key in self._arrays:
            return self._arrays[key]
        array = expand()
        if array.nbytes <= self.budget:
            self.budget -= array.nbytes
            self._arrays[key] = array
        return array


class Module:
    """The weights under one key prefix, and the operations on them.

    weights:    name -> StoredTensor, under the original checkpoint's key names; may be lazy
    prefix:     "" or "input_blocks.1.0."
    arithmetic: the numerics, and the deviations under test
    taps:       records outputs; None: no recording
    cache:      expanded weights that stay in memory
    adapters:   adapters of the layers; None: none
    circular:   axes on which a picture wraps around, so that conv2d pads with the opposite edge, not zeros
    prefixes:   prefixes of all weights; collected at the first `in`, and shared with the modules under this one
    """

    def __init__(
        self,
        weights: Mapping[str, StoredTensor],
        arithmetic: Arithmetic | None = None,
        prefix: str = "",
        taps: Taps | None = None,
        cache: WeightCache | None = None,
        adapters: Adapters | None = None,
        circular: CircularAxes | None = None,
        prefixes: set[str] | None = None,
    ):
        self.weights = weights
        self.arithmetic = arithmetic or Arithmetic(FLOAT64)
        self.prefix = prefix
        self.taps = taps
        self.cache = cache or WeightCache()
        self.adapters = adapters or Adapters({}, self.arithmetic)
        self.circular = circular or CircularAxes()
        self._prefixes = set() if prefixes is None else prefixes

    def __getitem__(self, name: str | int) -> "Module":
        """Return the module under a longer prefix: m["in_layers"], m["blocks"][3]."""
        prefix = f"{self.prefix}{name}."
        shared = self.arithmetic, prefix, self.taps, self.cache, self.adapters, self.circular, self._prefixes
        return type(self)(self.weights, *shared)

    def __contains__(self, name: str | int) -> bool:
        if not self._prefixes:
            self._prefixes |= {key[: i + 1] for key in self.weights for i, c in enumerate(key) if c == "."}
        return f"{self.prefix}{name}." in self._prefixes

    def count(self, name: str = "") -> int:
        """Count the numbered modules under `name`: name.0, name.1, ...; without a name, under this module."""
        start = f"{name}." if name else ""
        i = 0
        while f"{start}{i}" in self:
            i += 1
        return i

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight."""
        return self._stored(name).shape

    def weight(self, name: str) -> np.ndarray:
        """Return a weight expanded to the compute dtype. Raises BadInput if it does not exist."""
        return self.cache.get(self.prefix + name, lambda: self.arithmetic.expand(self._stored(name)))

    def _borrowed(self, name: str) -> np.ndarray:
        """Return a weight for immediate use: unless it is cached, it is valid only until the next call."""
        shape, itemsize = self.shape(name), self.arithmetic.numerics.compute_dtype.itemsize
        if self.cache.holds(self.prefix + name, math.prod(shape) * itemsize):
            return self.weight(name)
        return self.arithmetic.borrow(self._stored(name))

    def rows(self, name: str, index: np.ndarray) -> np.ndarray:
        """Expand only some rows of a weight, counted over all axes but the last, to the compute dtype. -> [n, D]

        Raises IndexError for a row that does not exist.
        """
        return self.arithmetic.expand(self._stored(name).rows(index))

    def _stored(self, name: str) -> StoredTensor:
        try:
            return self.weights[self.prefix + name]
        except KeyError:
            raise BadInput(f'the weights lack "{self.prefix}{name}"') from None

    def _bias(self, name: str) -> np.ndarray | None:
        return self.weight(f"{name}.bias") if f"{self.prefix}{name}.bias" in self.weights else None

    def _bias_or_zeros(self, name: str) -> np.ndarray:
        bias = self._bias(name)
        if bias is None:
            return np.zeros(self.shape(f"{name}.weight")[0], self.arithmetic.numerics.compute_dtype)
        return bias

    def _tap(self, name: str, y: np.ndarray) -> np.ndarray:
        if self.taps is not None and self.taps.ops:
            return self.taps.record(self.prefix + name, y)
        return y

    # Operations with weights: the first argument is the weights' name under this prefix.

    def linear(self, name: str, x):
        """x [..., K] -> [..., O]"""
        kind = self._stored(f"{name}.weight").product_type
        weight, bias = self._factor(name, x.shape), self._bias(name)
        y = self.arithmetic.linear(x, weight, bias, kind)
        return self._tap(name, self.adapters.linear(self.prefix + name, x, y, weight, bias))

    def _factor(self, name: str, x_shape) -> Any:
        """Return a linear layer's weight for immediate use, or packed if that is faster and fits the cache."""
        key = f"{name}.weight"
        if self.prefix + name not in self.adapters and self.arithmetic.packs(x_shape, self.shape(key)):
            kept_as = f"{self.prefix}{key} in panels"
            if self.cache.holds(
                kept_as, math.prod(self.shape(key)) * self.arithmetic.numerics.compute_dtype.itemsize
            ):
                return self.cache.get(kept_as, lambda: self.arithmetic.panels(self._stored(key)))
        return self._borrowed(key)

    def text_projection(self, name: str, x):
        """Apply a text encoder's final projection. x [N, K] -> [N, O]"""
        kind, weight = self._stored(f"{name}.weight").product_type, self._borrowed(f"{name}.weight")
        y = self.arithmetic.text_projection(x, weight, kind)
        return self._tap(name, self.adapters.linear(self.prefix + name, x, y, weight, None))

    def conv2d(self, name: str, x, stride=1, padding: int | tuple[int, int, int, int] = 0):
        """x [N, C, H, W], padding in pixels on each side or (top, bottom, left, right) -> [N, K, P, Q]"""
        sides = (padding, padding, padding, padding) if isinstance(padding, int) else padding
        x, sides = self.circular.wrap(x, sides)
        choice = self.arithmetic.choose(x.shape, self.shape(f"{name}.weight"), stride, sides)
        weight, bias = self._filters(name, choice), self._bias_or_zeros(name)
        y = self.arithmetic.conv2d(x, weight, bias, stride, sides)
        return self._tap(name, self.adapters.conv2d(self.prefix + name, x, y, weight, bias, stride, sides))

    def conv3d(self, name: str, x, stride: int | tuple[int, ...] = 1, padding: Sequence[int] = (0,) * 6):
        """x [N, C, D, H, W], padding (front, back, top, bottom, left, right) -> [N, K, F, P, Q]

        stride: a number, or (frames, down, across). Adapters of these layers are not supported.
        """
        front, back, top, bottom, left, right = padding
        x, sides = self.circular.wrap(x, (top, bottom, left, right))
        weight, bias = self.weight(f"{name}.weight"), self._bias_or_zeros(name)
        return self._tap(name, self.arithmetic.conv3d(x, weight, bias, stride, (front, back, *sides)))

    def _filters(self, name: str, choice: Choice) -> Any:
        """Return a convolution's weight, or its filters transformed or packed as chosen if they fit the cache."""
        key = f"{name}.weight"
        dtype = self.arithmetic.numerics.compute_dtype
        size = bytes_of_prepared(self.shape(key), choice, dtype)
        if size and self.prefix + name not in self.adapters:  # adapters need the weight itself
            kept_as = f"{self.prefix}{key} for {choice.name}"
            if self.cache.holds(kept_as, size):
                return self.cache.get(kept_as, lambda: self.arithmetic.filters(self._stored(key), choice))
        return self.weight(key)

    def group_norm(self, name: str, x, num_groups=32, eps=1e-5):
        """x [N, C, H, W] -> the same"""
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        weight, bias = self.adapters.norm(self.prefix + name, weight, bias)
        return self._tap(name, self.arithmetic.group_norm(x, weight, bias, num_groups, eps))

    def group_norm_silu(self, name: str, x, num_groups=32, eps=1e-5):
        """Compute silu(group_norm(x)) in one kernel; in two if taps record operations."""
        if self.taps is not None and self.taps.ops:
            return self.silu(self.group_norm(name, x, num_groups, eps))
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        weight, bias = self.adapters.norm(self.prefix + name, weight, bias)
        return self.arithmetic.group_norm_silu(x, weight, bias, num_groups, eps)

    def layer_norm(self, name: str | None, x, eps=1e-5):
        """x [..., D] -> the same. name None: no weight, no bias."""
        if name is None:
            return self._tap("layer_norm", self.arithmetic.layer_norm(x, eps=eps))
        weight, bias = self.adapters.norm(self.prefix + name, self.weight(f"{name}.weight"), self._bias(name))
        return self._tap(name, self.arithmetic.layer_norm(x, weight, bias, eps))

    def rms_norm(self, name: str | None, x, eps=1e-6, plus=0.0):
        """x [..., D] -> the same; `name` is the full key of the weight ("norm.weight", "query_norm.scale").

        name None: no weight
        plus: added to the weight; 1 where the file holds it less 1
        torch.nn.RMSNorm: one operation, rounded once.
        """
        if name is None:
            return self._tap("rms_norm", self.arithmetic.rms_norm(x, None, eps))
        weight = self.weight(name) + plus if plus else self.weight(name)
        return self._tap(name, self.arithmetic.rms_norm(x, weight, eps))

    def rms_norm_apart(self, name: str, x, eps=1e-6):
        """RMSNorm as diffusers and transformers write it: round the normalised x, then multiply by the weight."""
        return self._tap(name, self.arithmetic.rms_norm_apart(x, self.weight(name), eps))

    def rms_norm_channels(self, name: str, x, eps=1e-12):
        """x [N, C, ...] -> the same, the channels of each pixel normalised; `name` is the full key of the weight

        In one kernel; in three operations if taps record operations.
        """
        weight = self.weight(name).reshape(-1)
        if self.taps is None or not self.taps.ops:
            return self.arithmetic.rms_norm_channels(x, weight, eps)
        rows = self.l2_norm(x.transpose(0, *range(2, x.ndim), 1), eps)
        unit = rows.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))
        scaled = self.multiply(unit, math.sqrt(x.shape[1]))
        return self.multiply(scaled, weight.reshape(-1, *[1] * (x.ndim - 2)))

    def rms_norm_channels_silu(self, name: str, x, eps=1e-12):
        """Compute silu(rms_norm_channels(x)) in one kernel; in more if taps record operations."""
        if self.taps is not None and self.taps.ops:
            return self.silu(self.rms_norm_channels(name, x, eps))
        return self.arithmetic.rms_norm_channels_silu(x, self.weight(name).reshape(-1), eps)

    def embedding(self, name: str, ids):
        """ids [...] -> [..., D]; only the rows in use are expanded"""
        used, places = np.unique(ids, return_inverse=True)
        return self._tap(
            name, self.arithmetic.embedding(places.reshape(np.shape(ids)), self.rows(f"{name}.weight", used))
        )

    # Operations without weights.

    def silu(self, x):
        return self._tap("silu", self.arithmetic.silu(x))

    def gelu(self, x):
        return self._tap("gelu", self.arithmetic.gelu(x))

    def gelu_tanh(self, x):
        return self._tap("gelu_tanh", self.arithmetic.gelu(x, "tanh"))

    def geglu(self, x):
        """x [..., 2D] -> [..., D]"""
        return self._tap("geglu", self.arithmetic.geglu(x))

    def quick_gelu(self, x):
        return self._tap("quick_gelu", self.arithmetic.quick_gelu(x))

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        """q [B, L, H, D], k [B, J, G, D], v [B, J, G, E], G a divisor of H -> [B, L, H, E]"""
        return self._tap("attention", self.arithmetic.attention(q, k, v, scale, mask, diagonal, sinks))

    def timestep_embedding(self, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
        """t [N] -> [N, dim]"""
        y = self.arithmetic.timestep_embedding(t, dim, max_period, freq_shift, scale, sin_first)
        return self._tap("timestep_embedding", y)

    def upsample_nearest(self, x, factor=2):
        """x [N, C, H, W] -> [N, C, H*factor, W*factor]"""
        return self._tap("upsample_nearest", self.arithmetic.upsample_nearest(x, factor))

    def halve(self, x):
        """x [N, C, H, W], H and W even -> [N, C, H/2, W/2]"""
        return self._tap("halve", self.arithmetic.halve(x))

    def apply(self, kernel: Callable[..., np.ndarray], *arrays, **params):
        """Call a kernel that is not a method here, recorded under its name: m.apply(tanh, x)"""
        return self._tap(kernel.__name__, self.arithmetic.apply(kernel, *arrays, **params))

    def add(self, a, b):
        """a + b, broadcast against each other"""
        return self._tap("add", self.arithmetic.add(a, b))

    def multiply(self, a, b):
        """a * b, broadcast against each other"""
        return self._tap("multiply", self.arithmetic.multiply(a, b))

    def l2_norm(self, x, eps=1e-12):
        """x [..., D] -> the same, each row scaled to length 1"""
        return self._tap("l2_norm", self.arithmetic.l2_norm(x, eps))

    def swiglu(self, x, second_gates=False):
        """x [..., 2D] -> [..., D]"""
        return self._tap("swiglu", self.arithmetic.swiglu(x, second_gates))

    def adaptive_layer_norm(self, x, shift, scale, eps=1e-6):
        """LayerNorm without weights, (1 + scale) y + shift. x [N, L, D], shift and scale [N, D] -> [N, L, D]"""
        y = self.arithmetic.adaptive_layer_norm(x, shift, scale, eps)
        return self._tap("adaptive_layer_norm", y)

    def gated_add(self, x, h, gate):
        """x and h [N, L, D], gate [N, D] -> [N, L, D]"""
        return self._tap("gated_add", self.arithmetic.gated_add(x, h, gate))

    def modulate(self, x, shift, scale):
        """x [N, L, D], shift and scale [N, D] -> [N, L, D]"""
        return self._tap("modulate", self.arithmetic.modulate(x, shift, scale))

    def rope(self, x, angle):
        """Rotate channels 2 i and 2 i + 1. x [N, L, H, D], angle [N, L, D/2] in radians -> [N, L, H, D]"""
        return self._tap("rope", self.arithmetic.rope(x, angle))

    def rope_halves(self, x, angle):
        """Rotate as `rope`, but in pairs of channels i and D/2 + i."""
        return self._tap("rope", self.arithmetic.rope_halves(x, angle))

    def rope_angles(self, ids, axes_dim, theta):
        """ids [N, L, A] -> radians [N, L, sum(axes_dim) / 2], float64"""
        return self.arithmetic.rope_angles(ids, axes_dim, theta)

    def store(self, x) -> np.ndarray:
        """Round a model's input to the storage dtype."""
        return self.arithmetic.store(x)


def block(fn: F) -> F:
    """Decorate a model's function: record its return value as the output of its Module (the first argument).

    The parts of a returned tuple are recorded separately: "double_blocks.0.0", "double_blocks.0.1". A function that
    runs at the root, under no prefix, is the whole model; its output is not recorded.
    """

    @functools.wraps(fn)
    def run(m: Module, *args, **kwargs):
        return run_block(fn, m, args, kwargs)

    return cast(F, run)


def run_block(fn: Callable[..., Any], m: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function that `block` decorates. Known bugs of a stack's blocks replace this function."""
    if m.taps is None or not m.prefix:
        return fn(m, *args, **kwargs)
    if (instead := m.taps.enter(m.prefix.rstrip("."), args)) is not None:
        return instead
    y = fn(m, *args, **kwargs)
    if not isinstance(y, tuple):
        return m.taps.record(m.prefix.rstrip("."), y)
    names = [f"{m.prefix}{i}" for i in range(len(y))] if len(y) > 1 else [m.prefix.rstrip(".")]
    parts = [m.taps.record(name, part) for name, part in zip(names, y, strict=True)]
    make = getattr(type(y), "_make", tuple)  # keeps a named tuple's type
    return make(parts)
