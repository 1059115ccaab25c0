"""Write some operations' formulas a second time in plain NumPy, and run each with one expression changed.

Kernels are compiled, so their text cannot be changed while refsd runs. The functions here compute an activation,
where on the old axis a new pixel is read, the weights there, the turn of two channels, or a timestep's angles.
`generic/formula_variants.py` changes one expression at a time: another variable or function, a division of whole
numbers, a term left out.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.causes.generic.formula_variants import Text
from refsd.causes.generic.running_code import swapped
from refsd.causes.operation.function_steps import gate_and_value
from refsd.causes.operation.product_steps import rounded
from refsd.golden.operation import Inputs, Operation, Params

Named = Iterator[tuple[str, np.ndarray]]
# Bits of fractions that weights and places are rounded to: textures have 8.
_BITS = range(3, 13)
_FACTORS = (1, 2, 4, 8)
# Keys' a, and what else is usual.
_KEYS, _OTHER_KEYS = -0.75, (-0.5, -0.6, -1.0, -2 / 3, -1 / 3)


class _Family(NamedTuple):
    """
    texts: the functions that are changed
    parts: values, params -> results of the functions; each may be wrong alone
    names: of the parts, "" for the only one
    made:  values, params, parts -> the answer
    more:  values, params -> (phrase, wrong parts) that no change of a text gives
    """

    texts: tuple[Callable, ...]
    parts: Callable[[Any, Params], list[Any]]
    names: tuple[str, ...]
    made: Callable[[Any, Params, list[Any]], np.ndarray]
    more: Callable[[Any, Params], Iterator[tuple[str, list[Any]]]] = lambda values, params: iter(())


def changed_formulas(op: Operation, inputs: Inputs, params: Params) -> Named:
    """Yield (phrase, wrong answer), all parts wrong, then each alone; nothing for operations without a formula."""
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    with np.errstate(all="ignore"):
        for family in _families(op.name, params):
            right = family.parts(values, params)
            for phrase, wrong in _wrong_parts(family, values, params, right):
                yield phrase, family.made(values, params, wrong).astype(np.float32)
                for i, name in enumerate(family.names) if len(right) > 1 else ():
                    alone = [*right[:i], wrong[i], *right[i + 1 :]]
                    yield f"{phrase}, {name} alone", family.made(values, params, alone).astype(np.float32)


def _wrong_parts(family: _Family, values: Any, params: Params, right: list) -> Iterator[tuple[str, list]]:
    for function in family.texts:
        assert isinstance(function, FunctionType)
        for variant in sorted(Text(function).variants(), key=lambda variant: variant.rank):
            # A changed formula may fail in any way: then it explains nothing.
            with suppress(Exception), swapped(function, variant.code):
                parts = family.parts(values, params)
                if _shapes(parts) == _shapes(right):
                    yield variant.phrase, parts
    yield from family.more(values, params)


def _shapes(parts: list) -> list:
    return [[(type(t), np.shape(t)) for t in (part if isinstance(part, tuple) else (part,))] for part in parts]


# --- activations ----------------------------------------------------------------------------------------------


erf = np.vectorize(math.erf, [np.float64])  # to load scipy's takes half a second


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def tanh(x):
    return 1 - 2 / (np.exp(2 * x) + 1)


_ACTIVATIONS = {f.__name__: f for f in (silu, gelu, gelu_tanh, quick_gelu, sigmoid, tanh)}
_ACTIVATIONS |= {"swiglu": silu, "geglu": gelu}


# Abramowitz & Stegun's approximations of erf by polynomials of t = 1 / (1 + p x): number, p, factors of t, t^2, ...
_ERF = (
    ("7.1.25", 0.47047, (0.3480242, -0.0958798, 0.7478556)),
    ("7.1.26", 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)),
)
_POWERS = (
    ("7.1.27", (0.278393, 0.230389, 0.000972, 0.078108), 4),
    ("7.1.28", (0.0705230784, 0.0422820123, 0.0092705272, 0.0001520143, 0.0002765672, 0.0000430638), 16),
)


def _erfs(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield approximations of erf, each with its source."""
    size = np.abs(x)
    for number, p, factors in _ERF:
        t = 1 / (1 + p * size)
        y = 1 - sum(a * t ** (k + 1) for k, a in enumerate(factors)) * np.exp(-x * x)
        yield f"Abramowitz & Stegun {number}", np.sign(x) * y
    for number, factors, power in _POWERS:
        y = 1 - (1 + sum(a * size ** (k + 1) for k, a in enumerate(factors))) ** -power
        yield f"Abramowitz & Stegun {number}", np.sign(x) * y
    a, square = 0.147, x * x
    inner = (4 / np.pi + a * square) / (1 + a * square)
    yield "Winitzki's, a = 0.147", np.sign(x) * np.sqrt(1 - np.exp(-square * inner))
    yield "tanh(2 x / sqrt(pi))", np.tanh(2 * x / np.sqrt(np.pi))
    yield "tanh(1.5976 x / sqrt(2))", np.tanh(1.5976 * x / np.sqrt(2))


def _activation(name: str, params: Params) -> _Family:
    of = _ACTIVATIONS[name]
    split = lambda values: gate_and_value(name, values["x"], params)

    def more(values, params):
        x = split(values)[0]
        for words, y in _erfs(x / np.sqrt(2)) if of is gelu else ():
            yield f"erf is approximate: {words}", [x * (1 + y) / 2]

    parts = lambda values, params: [of(split(values)[0])]
    return _Family((of,), parts, ("",), lambda values, params, parts: parts[0] * split(values)[1], more)


def batch_norm(x, mean, var, eps):
    return (x - mean) / np.sqrt(var + eps)


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


def gated_add(x, h, gate):
    return x + gate * h


def _elementwise(of: Callable, middle: str) -> Callable[[Params], _Family]:
    """middle: how inputs of fewer axes are indexed to stand beside x"""

    def parts(values, params):
        whole = values["x"].ndim
        names = [name for name in inspect.signature(of).parameters if name in values]
        spread = {"C": np.s_[:, None, None], "ND": np.s_[:, None]}[middle]
        rest = [params[name] for name in inspect.signature(of).parameters if name not in values]
        return [of(*(values[n] if values[n].ndim == whole else values[n][spread] for n in names), *rest)]

    return lambda params: _Family((of,), parts, ("",), lambda values, params, parts: parts[0])


# --- resampling -----------------------------------------------------------------------------------------------


def place(p, size, new):
    return (p + 0.5) * (size / new) - 0.5


def place_of_corners(p, size, new):
    return p * ((size - 1) / max(new - 1, 1))


def nearest(p, size, new):
    return np.floor(p * size / new)


def nearest_exact(p, size, new):
    return np.floor((p + 0.5) * size / new)


def repeated(p, factor):
    return p // factor


def two_taps(at):
    at = np.maximum(at, 0)
    first = np.floor(at)
    t = at - first
    return np.stack([first, first + 1]), np.stack([1 - t, t])


def four_taps(at, a=_KEYS):
    first = np.floor(at)
    index = np.stack([first - 1, first, first + 1, first + 2])
    return index, keys(np.abs(index - at), a)


def keys(t, a):
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = (((t - 5) * t + 8) * t - 4) * a
    return np.where(t <= 1, near, far)


def four_weights(at, a=_KEYS):
    first = np.floor(at)
    t = at - first
    index = np.stack([first - 1, first, first + 1, first + 2])
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [(((d - 5) * d + 8) * d - 4) * a for d in (1 + t, 2 - t)]
    return index, np.stack([far[0], *near, far[1]])


def _one_tap(at):
    return at[None], np.ones((1, at.size))


_SAMPLERS: dict[str, tuple[Callable, tuple[Callable, ...]]] = {
    "resize_nearest": (nearest, (_one_tap,)),
    "resize_nearest_exact": (nearest_exact, (_one_tap,)),
    "resize_bilinear": (place, (two_taps,)),
    "resize_bicubic": (place, (four_taps, four_weights)),
}


_STEPS: dict[str, Callable[[int, int], float]] = {
    "size // new": lambda size, new: size // new,
    "1 / (new // size)": lambda size, new: 1 / max(new // size, 1),
    "size / new in float32": lambda size, new: float(np.float32(size) / np.float32(new)),
    "1 / (new / size) in float32": lambda size, new: float(1 / (np.float32(new) / np.float32(size))),
}


def _sampled(values: Any, params: Params, parts: list) -> np.ndarray:
    """Weigh the pixels of both axes; a place beyond the picture is its border's."""
    y = values["x"]
    for axis, (index, weight) in zip((2, 3), parts, strict=True):
        there = np.clip(np.nan_to_num(index), 0, y.shape[axis] - 1).astype(np.int64)
        of_axis = weight.reshape(*weight.shape, *[1] * (3 - axis))
        y = (y.take(there, axis) * of_axis).sum(axis)
    return y


def _samplers(name: str, params: Params) -> Iterator[_Family]:
    if params.get("antialias") or params.get("factors"):
        return
    at, ways = _SAMPLERS[name]
    at = place_of_corners if params.get("align_corners") else at

    def sides(values):
        return zip(values["x"].shape[2:], (params["height"], params["width"]), strict=True)

    def places(values):
        return [at(np.arange(new), size, new) + np.zeros(new) for size, new in sides(values)]

    for taps in ways:
        texts = (at, *([] if taps is _one_tap else [taps]), *([keys] if taps is four_taps else []))

        def parts(values, params, taps=taps):
            return [taps(there) for there in places(values)]

        def more(values, params, taps=taps):
            for words, step in _STEPS.items() if taps is _one_tap else ():
                start = 0.5 * (at is nearest_exact)
                wrong = [np.floor((np.arange(new) + start) * step(size, new)) for size, new in sides(values)]
                yield f"the step from pixel to pixel is {words}, not size / new", [taps(there) for there in wrong]
            for a in _OTHER_KEYS if taps is four_taps else ():
                yield f"a is {a:.4g}, not {_KEYS:g}", [four_taps(there, a) for there in places(values)]
            for bits in _BITS if taps in (two_taps, four_taps) else ():
                unit = 2.0**-bits
                for how, to_whole in (("rounded", np.rint), ("cut", np.floor)):
                    yield (
                        f"places {how} to 1/{2**bits}",
                        [taps(to_whole(there / unit) * unit) for there in places(values)],
                    )
                    found = [taps(there) for there in places(values)]
                    yield f"weights {how} to 1/{2**bits}", [(i, to_whole(w / unit) * unit) for i, w in found]

        yield _Family(texts, parts, ("rows", "columns"), _sampled, more)


def _repeating(params: Params) -> _Family:
    def parts(values, params, factor=None):
        own, sides = params["factor"], values["x"].shape[2:]
        chosen = [repeated(np.arange(size * own), factor or own) for size in sides]
        return [_one_tap(np.clip(at, 0, size - 1)) for at, size in zip(chosen, sides, strict=True)]

    def more(values, params):
        for factor in _FACTORS:
            wrong = parts(values, params, factor)
            yield f"factor is {factor}, not {params['factor']}, in where pixels are read", wrong

    return _Family((repeated,), parts, ("rows", "columns"), _sampled, more)


# --- positions ------------------------------------------------------------------------------------------------


def frequency(i, dim, theta):
    return theta ** (-2 * i / dim)


def turned(first, second, cos, sin):
    new_first = first * cos - second * sin
    new_second = first * sin + second * cos
    return new_first, new_second


def _as_it_is(t):
    return t


def _rope(params: Params) -> _Family:
    width = sum(params["axes_dim"])
    order = np.arange(width).reshape(2, -1) if params["halves"] else np.arange(width).reshape(-1, 2).T

    def parts(values, params, of_id=_as_it_is, of_frequency=_as_it_is, of_sine=_as_it_is):
        x, theta = values["x"], params["theta"]
        ids = of_id(values["ids"])
        frequencies = [of_frequency(frequency(np.arange(dim // 2), dim, theta)) for dim in params["axes_dim"]]
        angles = [ids[..., a, None] * own for a, own in enumerate(frequencies)]
        angle = np.concatenate(angles, axis=-1)[:, :, None]
        return [turned(x[..., order[0]], x[..., order[1]], of_sine(np.cos(angle)), of_sine(np.sin(angle)))]

    def more(values, params):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            for what in ("id", "frequency", "sine"):
                wrong = parts(values, params, **{f"of_{what}": rounded(dtype)})
                words = {"id": "positions", "frequency": "frequencies", "sine": "cosines and sines"}[what]
                yield f"{words} rounded to {np.dtype(dtype).name}", wrong

    def made(values, params, parts):
        y = values["x"].copy()
        y[..., order[0]], y[..., order[1]] = parts[0]
        return y

    return _Family((turned, frequency), parts, ("",), made, more)


def timestep_angle(t, j, half, max_period, freq_shift, scale):
    return scale * t * np.exp(-np.log(max_period) * j / (half - freq_shift))


def _timestep(params: Params) -> _Family:
    half, odd = params["dim"] // 2, params["dim"] % 2
    numbers = [params[name] for name in ("max_period", "freq_shift", "scale")]

    def parts(values, params):
        return [timestep_angle(values["t"][:, None], np.arange(half), half, *numbers)]

    def made(values, params, parts):
        y = [np.cos(parts[0]), np.sin(parts[0])]
        return np.pad(np.concatenate(y[::-1] if params["sin_first"] else y, axis=1), ((0, 0), (0, odd)))

    return _Family((timestep_angle,), parts, ("",), made)


def _families(name: str, params: Params) -> Iterator[_Family]:
    if name in _ACTIVATIONS:
        yield _activation(name, params)
    elif name in _SAMPLERS:
        yield from _samplers(name, params)
    elif name in _OTHERS:
        yield _OTHERS[name](params)


_OTHERS = {"upsample_nearest": _repeating, "rope": _rope, "timestep_embedding": _timestep}
_OTHERS |= {"batch_norm": _elementwise(batch_norm, "C")}
_OTHERS |= {f.__name__: _elementwise(f, "ND") for f in (modulate, gated_add)}
NAMES = {*_ACTIVATIONS, *_SAMPLERS, *_OTHERS}
