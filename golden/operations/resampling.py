"""Resampling and pooling."""

from refsd.golden.errors import BadInput
from refsd.golden.operations.operation import IMAGE, REQUIRED, Operation, entry, values
from refsd.kernels import interpolate, pool
from refsd.kernels.resample import resize_nearest

# (align_corners, antialias) -> the convention
CONVENTIONS = {(False, False): "", (True, False): "_corners", (False, True): "_antialias"}


def _upsample_nearest(a, inputs, params):
    return a.upsample_nearest(values(a, inputs["x"]), params["factor"])


def _resize_nearest(a, inputs, params):
    return resize_nearest(values(a, inputs["x"]), params["height"], params["width"])


def _resize(kind):
    def run(a, inputs, params):
        how = params["align_corners"], params["antialias"]
        if how not in CONVENTIONS:
            raise BadInput(f"resize_{kind}: align_corners and antialias exclude each other")
        kernel = getattr(interpolate, f"resize_{kind}{CONVENTIONS[how]}")
        return a.apply(kernel, values(a, inputs["x"]), height=params["height"], width=params["width"])

    return run


def _window(params):
    return {name: tuple(params[name]) for name in ("kernel_size", "stride", "padding")}


def _avg_pool2d(a, inputs, params):
    kernel = pool.avg_pool2d if params["count_include_pad"] else pool.avg_pool2d_inside
    return a.apply(kernel, values(a, inputs["x"]), **_window(params))


def _max_pool2d(a, inputs, params):
    return a.apply(pool.max_pool2d, values(a, inputs["x"]), **_window(params))


def _entry(run, what, output, **params):
    return entry(run, what, {"x": IMAGE}, output, channel=1, **params)


_NEW_SIZE = {"height": REQUIRED, "width": REQUIRED}
_CONVENTION = {"align_corners": False, "antialias": False}
_WINDOW = {"kernel_size": REQUIRED, "stride": REQUIRED, "padding": (0, 0)}

OPERATIONS: dict[str, Operation] = {
    "upsample_nearest": entry(
        _upsample_nearest,
        "Repeat each pixel `factor` times in both directions.",
        {"x": IMAGE},
        "[N, C, H*factor, W*factor]",
        channel=1,
        factor=2,
    ),
    "resize_nearest": _entry(
        _resize_nearest,
        "Take the pixel at floor(p H / height), floor(q W / width).",
        "[N, C, height, width]",
        **_NEW_SIZE,
    ),
    "resize_bilinear": _entry(
        _resize("bilinear"),
        "Interpolate between the two nearest of each axis.",
        "[N, C, height, width]",
        **_NEW_SIZE,
        **_CONVENTION,
    ),
    "resize_bicubic": _entry(
        _resize("bicubic"),
        "Keys' cubic over the four nearest of each axis: a = -3/4, with antialias -1/2.",
        "[N, C, height, width]",
        **_NEW_SIZE,
        **_CONVENTION,
    ),
    "avg_pool2d": _entry(
        _avg_pool2d,
        "The mean of each window, vertical size first; the padding's zeros count, or not.",
        "[N, C, P, Q]",
        **_WINDOW,
        count_include_pad=True,
    ),
    "max_pool2d": _entry(_max_pool2d, "The largest number of each window.", "[N, C, P, Q]", **_WINDOW),
}
