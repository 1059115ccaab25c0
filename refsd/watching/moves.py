"""Operations that move numbers, or make them of nothing: exact, except where the output's dtype rounds."""

import math
from typing import Any

import numpy as np

from refsd.watching.calls import Call, Expected, NotJudged, Rule, expected, parts, values, wide
from refsd.watching.sums import added_at

_PADS = {"reflection": "reflect", "replication": "edge"}


def _moved(function) -> Rule:
    """A rule from a function of the call's arguments."""

    def rule(call: Call) -> list[Expected]:
        return [_of_dtype(call, np.asarray(function(call.args)))]

    return rule


def _of_dtype(call: Call, truth: np.ndarray) -> Expected:
    y = call.outputs[0]
    whole = hasattr(y, "dtype") and not (y.dtype.is_floating_point or y.dtype.is_complex)
    return Expected(truth.astype(values(y).dtype) if whole else truth) if whole else expected(call, truth)


def _pad(a):
    x = wide(a["self"])
    sides = [(0, 0)] * (x.ndim - len(a["pad"]) // 2) + list(zip(a["pad"][-2::-2], a["pad"][-1::-2], strict=True))
    # Negative padding crops.
    where = tuple(slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(sides, x.shape, strict=True))
    return np.pad(x[where], [(max(b, 0), max(e, 0)) for b, e in sides], constant_values=a["value"])


def _pad_as(mode: Any):
    def function(a):
        x, pad = wide(a["self"]), a["padding"]
        if min(pad) < 0:
            raise NotJudged("negative padding")
        sides = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[-2::-2], pad[-1::-2], strict=True))
        return np.pad(x, sides, mode)

    return function


def _where(indices) -> tuple:
    """NumPy's index of torch's list: None is a whole axis."""
    return tuple(slice(None) if one is None else values(one) for one in indices)


def _index(a):
    x = wide(a["self"])
    where = list(_where(a["indices"]))
    given = [i for i, one in enumerate(where) if not isinstance(one, slice)]
    masks = any(where[i].dtype == bool for i in given)
    if masks and len(given) > 1:
        raise NotJudged("an index by several masks")
    y = x[tuple(where)]
    if given and given[-1] - given[0] + 1 != len(given):
        return y  # axes apart: both put the result first
    return y


def _distinct(shape: tuple[int, ...], where: tuple) -> None:
    """Raise NotJudged if an element is written more than once: which value stays is not defined."""
    written = np.zeros(shape, np.int8)
    np.add.at(written, where, 1)
    if (written > 1).any():
        raise NotJudged("an element that is written more than once")


def _index_put(call: Call) -> list[Expected]:
    where, new = _where(call.args["indices"]), wide(call.args["values"])
    if call.args.get("accumulate"):
        return added_at(lambda a: (where, new))(call)
    x = wide(call.args["self"]).copy()
    _distinct(x.shape, where)
    x[where] = new
    return [_of_dtype(call, x)]


def _index_copy(a):
    x = wide(a["self"]).copy()
    np.moveaxis(x, a["dim"], 0)[values(a["index"])] = np.moveaxis(wide(a["source"]), a["dim"], 0)
    return x


def _slice_scatter(a):
    x = wide(a["self"]).copy()
    where = [slice(None)] * x.ndim
    where[a["dim"]] = slice(a["start"], a["end"], a["step"])
    x[tuple(where)] = wide(a["src"])
    return x


def _select_scatter(a):
    x = wide(a["self"]).copy()
    np.moveaxis(x, a["dim"], 0)[a["index"]] = wide(a["src"])
    return x


def _scatter(a):
    x, index = wide(a["self"]).copy(), values(a["index"])
    if "reduce" in a:
        raise NotJudged("numbers added up at an index")
    if any(n != m for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if i != a["dim"] % x.ndim):
        raise NotJudged("an index shorter than the tensor")
    new = np.broadcast_to(wide(a["value"]), index.shape) if "value" in a else wide(a["src"])
    if "src" in a:
        each = list(np.indices(index.shape, sparse=True))
        each[a["dim"]] = index
        _distinct(x.shape, tuple(each))
    np.put_along_axis(x, index, new[tuple(map(slice, index.shape))], a["dim"])
    return x


def _repeat(a):
    x, repeats = wide(a["self"]), a["repeats"]
    return np.tile(x.reshape((1,) * (len(repeats) - x.ndim) + x.shape), repeats)


def _triangle(function):
    return lambda a: function(wide(a["self"]), a["diagonal"])


def _full(number):
    """An array of one number, in the size given or that of `self`. number: from the arguments"""

    def shape(a) -> tuple[int, ...]:
        return tuple(a["size"] if "size" in a else a["self"].shape if "self" in a else ())

    return _moved(lambda a: np.full(shape(a), number(a)))


def arange(call: Call) -> list[Expected]:
    """start + i step: a product and a sum are rounded."""
    a = call.args
    start, step = a.get("start", 0), a.get("step", 1)
    truth = start + np.arange(math.ceil((a["end"] - start) / step)) * step
    return [_rounded_sum(call, truth, max(abs(start), float(np.abs(truth).max(initial=0))))]


def linspace(call: Call) -> list[Expected]:
    a = call.args
    start, end = (float(wide(a[name])) for name in ("start", "end"))
    if call.run.numerics.storage != call.run.numerics.compute:
        raise NotJudged("steps that are rounded to few bits")
    return [_rounded_sum(call, np.linspace(start, end, a["steps"]), 2 * max(abs(start), abs(end)))]


def _rounded_sum(call: Call, truth: np.ndarray, size: float) -> Expected:
    if not call.outputs[0].dtype.is_floating_point:
        return _of_dtype(call, truth)
    return expected(call, truth.astype(np.float64), 2 * call.run.u * size)


def sort(call: Call) -> list[Expected]:
    """Of equal numbers any order of the indices is right."""
    x, dim = np.atleast_1d(wide(call.args["self"])), call.args["dim"]
    order = np.argsort(x, dim, kind="stable")
    if call.args["descending"]:
        order = np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
        order = x.shape[dim] - 1 - order
    truth, actual = np.take_along_axis(x, order, dim), np.atleast_1d(values(call.outputs[1]))
    if not call.args.get("stable") and np.array_equal(np.sort(actual, dim), np.sort(order, dim)):
        same = np.take_along_axis(x, actual, dim)
        order = np.where((same == truth) | (np.isnan(same) & np.isnan(truth)), actual, order)
    shape = tuple(call.outputs[0].shape) if not call.args["self"].ndim else truth.shape
    return [_of_dtype(call, truth.reshape(shape)), Expected(order.reshape(shape))]


def _pixel_shuffle(a):
    x, r = wide(a["self"]), a["upscale_factor"]
    *N, C, H, W = x.shape
    y = x.reshape(-1, C // r**2, r, r, H, W).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(*N, C // r**2, H * r, W * r)


def _pixel_unshuffle(a):
    x, r = wide(a["self"]), a["downscale_factor"]
    *N, C, H, W = x.shape
    y = x.reshape(-1, C, H // r, r, W // r, r).transpose(0, 1, 3, 5, 2, 4)
    return y.reshape(*N, C * r**2, H // r, W // r)


MOVES: dict[str, Rule] = {
    "cat": _moved(lambda a: np.concatenate([wide(t) for t in a["tensors"] if t.ndim != 1 or t.numel()], a["dim"])),
    "stack": _moved(lambda a: np.stack([wide(t) for t in a["tensors"]], a["dim"])),
    "constant_pad_nd": _moved(_pad),
    **{f"{kind}_pad{n}d": _moved(_pad_as(mode)) for kind, mode in _PADS.items() for n in (1, 2, 3)},
    "index": _moved(_index),
    "_unsafe_index": _moved(_index),
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "index_select": _moved(lambda a: np.take(wide(a["self"]), _of_axis(a["self"], a["index"]), a["dim"])),
    "index_copy": _moved(_index_copy),
    "gather": _moved(lambda a: _gathered(wide(a["self"]), values(a["index"]), a["dim"])),
    "scatter": _moved(_scatter),
    "slice_scatter": _moved(_slice_scatter),
    "select_scatter": _moved(_select_scatter),
    "embedding": _moved(lambda a: wide(a["weight"])[values(a["indices"])]),
    "masked_select": _moved(lambda a: _selected(wide(a["self"]), values(a["mask"]))),
    "nonzero": _moved(lambda a: np.argwhere(wide(a["self"]))),
    "flip": _moved(lambda a: np.flip(wide(a["self"]), a["dims"])),
    "roll": _moved(lambda a: np.roll(wide(a["self"]), a["shifts"], a["dims"] or None)),
    "repeat": _moved(_repeat),
    "repeat_interleave": _moved(lambda a: np.repeat(np.arange(a["repeats"].numel()), values(a["repeats"]))),
    "tril": _moved(_triangle(np.tril)),
    "triu": _moved(_triangle(np.triu)),
    "sort": sort,
    "pixel_shuffle": _moved(_pixel_shuffle),
    "pixel_unshuffle": _moved(_pixel_unshuffle),
    "view_as_real": _moved(lambda a: parts(wide(a["self"]))),
    "view_as_complex": _moved(lambda a: _complex(wide(a["self"]))),
    "complex": _moved(lambda a: wide(a["real"]) + 1j * wide(a["imag"])),
    "polar": lambda call: [_polar(call)],
    "fill": _full(lambda a: wide(a["value"])),
    "zero": _full(lambda a: 0),
    "full": _full(lambda a: a["fill_value"]),
    "full_like": _full(lambda a: a["fill_value"]),
    "new_full": _full(lambda a: a["fill_value"]),
    "scalar_tensor": _full(lambda a: a["s"]),
    **{name: _full(lambda a: 0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{name: _full(lambda a: 1) for name in ("ones", "ones_like", "new_ones")},
    "eye": _moved(lambda a: np.eye(a["n"], a.get("m"))),
    "arange": arange,
    "linspace": linspace,
}


def _of_axis(x, index):
    return values(index).reshape(-1 if x.ndim else ())


def _selected(x, mask):
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return np.broadcast_to(x, shape)[np.broadcast_to(mask, shape)]


def _gathered(x, index, dim):
    x = x[tuple(slice(None) if d == dim % x.ndim else slice(n) for d, n in enumerate(index.shape))]
    return np.take_along_axis(x, index, dim)


def _complex(x):
    return x[..., 0] + 1j * x[..., 1]


def _polar(call: Call) -> Expected:
    size, angle = wide(call.args["abs"]), wide(call.args["angle"])
    return expected(call, size * np.exp(1j * angle), 8 * call.run.u * np.abs(size))
