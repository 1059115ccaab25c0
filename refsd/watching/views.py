"""Calls that give another view of the same memory: judged by shape, strides and offset, without reading a number.

A stand-in array of NumPy with the input's shape and strides is never read: its own views show what is right.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsd.watching.calls import Call, NotJudged

# (stand-in, arguments) -> the views that the call should give
View = Callable[[np.ndarray, Any], "np.ndarray | list[np.ndarray]"]


def wrong_view(call: Call) -> str:
    """Say how a view differs from what it should be; "" if it is right."""
    x = next(call.args[name] for name in ("self", "input") if name in call.args)
    size = x.element_size()
    steps = tuple(size * step for step in x.stride())
    stand_in = np.lib.stride_tricks.as_strided(np.zeros(1, _elements(size)), tuple(x.shape), steps)
    try:
        found = VIEWS[call.op](stand_in, call.args)
    except ValueError as error:
        return f"torch views {list(x.shape)} with strides {list(x.stride())} otherwise than they allow: {error}"
    views = found if isinstance(found, list) else [found]
    if len(views) != len(call.outputs):
        return f"{len(call.outputs)} views, expected {len(views)}"
    for view, y in zip(views, call.outputs, strict=True):
        offset = (_address(view) - _address(stand_in)) / size
        if tuple(y.shape) != view.shape:
            return f"a view of shape {list(y.shape)}, expected {list(view.shape)}"
        if not view.size:
            continue
        strides = [step // view.itemsize for step, n in zip(view.strides, view.shape, strict=True) if n > 1]
        own = [step for step, n in zip(y.stride(), y.shape, strict=True) if n > 1]
        moved = (y.data_ptr() - x.data_ptr()) / size
        if strides != own or offset != moved:
            return (
                f"a view with strides {own}, {moved:g} numbers behind its input; expected {strides} and {offset:g}"
            )
    return ""


def _elements(size: int) -> str:
    return f"V{size}"


def _address(view: np.ndarray) -> int:
    return view.__array_interface__["data"][0]


def _squeeze(x, a):
    dims = a.get("dim", range(x.ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return np.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


def _slice(x, a):
    where = [slice(None)] * x.ndim
    where[a["dim"]] = slice(a["start"], a["end"], a["step"])
    return x[tuple(where)]


def _select(x, a):
    where: list[Any] = [slice(None)] * x.ndim
    where[a["dim"]] = a["index"]
    return x[(*where, ...)]


def _split(x, a):
    size, dim = a.get("split_size"), a["dim"]
    sizes = a.get("split_sizes")
    if sizes is None:
        assert size is not None
        count = max(1, -(-x.shape[dim] // size)) if size else 1
        return np.split(x, [size * i for i in range(1, count)], axis=dim)
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=dim)


def _expand(x, a):
    new = list(a["size"])
    old = [1] * (len(new) - x.ndim) + list(x.shape)
    return np.broadcast_to(x, [o if n == -1 else n for n, o in zip(new, old, strict=True)])


def _view(x, a):
    if "size" not in a:
        return x.view(_elements(a["dtype"].itemsize))
    return x.reshape(a["size"], copy=False)


def _unfold(x, a):
    if not x.ndim:
        raise NotJudged("windows of one number")
    windows = np.lib.stride_tricks.sliding_window_view(x, a["size"], a["dimension"])
    where = [slice(None)] * windows.ndim
    where[a["dimension"]] = slice(None, None, a["step"])
    return windows[tuple(where)]


def _same(x, a):
    return x


VIEWS: dict[str, View] = {
    "view": _view,
    "_unsafe_view": _view,
    "permute": lambda x, a: np.transpose(x, a["dims"]),
    "transpose": lambda x, a: x if not x.ndim else np.swapaxes(x, a["dim0"], a["dim1"]),
    "t": lambda x, a: x.T,
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    "unsqueeze": lambda x, a: np.expand_dims(x, a["dim"]),
    "squeeze": _squeeze,
    "split": _split,
    "split_with_sizes": _split,
    "unbind": lambda x, a: [np.moveaxis(x, a["dim"], 0)[i, ...] for i in range(x.shape[a["dim"]])],
    "unfold": _unfold,
    "alias": _same,
    "detach": _same,
    "lift_fresh": _same,
}
