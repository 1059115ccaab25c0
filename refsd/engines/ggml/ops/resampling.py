"""Resampling and pooling as ggml graphs."""

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params, Refusal
from refsd.golden.case import Case

# ggml.h: ggml_scale_mode, ggml_scale_flag, ggml_op_pool
_NEAREST, _BILINEAR, _BICUBIC = 0, 1, 2
_ALIGN_CORNERS, _ANTIALIAS = 1 << 8, 1 << 9
_MAX, _MEAN = 0, 1


def _upsample_nearest(g: Graph, inputs: Inputs, params: Params) -> Result:
    N, C, H, W = inputs["x"].shape
    factor = params["factor"]
    return Result(g.upscale(g.floats(inputs["x"]), factor, _NEAREST), (N, C, H * factor, W * factor))


def _resize(mode: int):
    def build(g: Graph, inputs: Inputs, params: Params) -> Result:
        N, C, _, _ = inputs["x"].shape
        height, width = params["height"], params["width"]
        flags = _ALIGN_CORNERS * params.get("align_corners", False) | _ANTIALIAS * params.get("antialias", False)
        y = g.interpolate(g.floats(inputs["x"]), width, height, C, N, mode | flags)
        return Result(y, (N, C, height, width))

    return build


def _pool(op: int):
    def build(g: Graph, inputs: Inputs, params: Params) -> Result:
        N, C, H, W = inputs["x"].shape
        (R, S), (down, right), (top, left) = (params[name] for name in ("kernel_size", "stride", "padding"))
        y = g.pool_2d(g.floats(inputs["x"]), op, S, R, right, down, left, top)
        return Result(y, (N, C, (H + 2 * top - R) // down + 1, (W + 2 * left - S) // right + 1))

    return build


def _only_by_size(case: Case) -> str | None:
    return "ggml_interpolate takes the new size alone" if case.params.get("factors") else None


def _only_without_antialias(case: Case) -> str | None:
    if refusal := _only_by_size(case):
        return refusal
    return "ggml_interpolate has no bicubic with antialias" if case.params.get("antialias") else None


def _only_with_the_padding(case: Case) -> str | None:
    counted = case.params.get("count_include_pad", True) or not any(case.params.get("padding", ()))
    return None if counted else "ggml_pool_2d counts the padding"


BUILDERS: dict[str, Builder] = {
    "upsample_nearest": Builder(_upsample_nearest, ("ggml_upscale",)),
    "resize_nearest": Builder(_resize(_NEAREST), ("ggml_interpolate",)),
    "resize_bilinear": Builder(_resize(_BILINEAR), ("ggml_interpolate",)),
    "resize_bicubic": Builder(_resize(_BICUBIC), ("ggml_interpolate",)),
    "avg_pool2d": Builder(_pool(_MEAN), ("ggml_pool_2d",)),
    "max_pool2d": Builder(_pool(_MAX), ("ggml_pool_2d",)),
}
REFUSALS: dict[str, Refusal] = {
    "upsample_nearest": lambda case: (
        "ggml_upscale wants a factor above 1" if case.params.get("factor") == 1 else None
    ),
    "resize_bilinear": _only_by_size,
    "resize_bicubic": _only_without_antialias,
    "avg_pool2d": _only_with_the_padding,
}
