"""Resampling and pooling by mlx.nn."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.engines.mlx.ops.convolution import channels_first, channels_last
from refsd.golden.case import Case


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
    size = case.inputs["x"].shape[2:]
    wanted = (case.params["height"], case.params["width"])
    made = tuple(int(f * n) for f, n in zip(_factors(size, case.params), size, strict=True))
    return (
        None if made == wanted else f"mlx.nn.Upsample takes factors, and gives {made} where {wanted} is asked for"
    )


def _counts_padding(case: Case) -> str | None:
    counted = case.params.get("count_include_pad", True) or not any(case.params.get("padding", ()))
    return None if counted else "mlx.nn.AvgPool2d counts the padding"


FUNCTIONS: dict[str, Function] = {
    "upsample_nearest": _upsample_nearest,
    "resize_bilinear": _resize("linear"),
    "resize_bicubic": _resize("cubic"),
    "avg_pool2d": _pool("AvgPool2d"),
    "max_pool2d": _pool("MaxPool2d"),
}
REFUSALS: dict[str, Refusal] = {
    "resize_bilinear": _reachable,
    "resize_bicubic": _reachable,
    "avg_pool2d": _counts_padding,
}
ROUNDED = {"avg_pool2d": "MLX's mean rounds its sum to the dtype, which no profile declares"}
