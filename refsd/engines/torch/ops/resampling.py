"""Resampling and pooling by torch."""

from refsd.engines.torch.ops.function import Function


def _upsample_nearest(torch, x, params):
    return torch.nn.functional.interpolate(x["x"], scale_factor=float(params["factor"]), mode="nearest")


def _resize(mode: str) -> Function:
    def resized(torch, x, params):
        """Resize in float32 and round once: float16 lacks antialiasing, and its bicubic rounds the weights."""
        how = {name: params[name] for name in ("align_corners", "antialias") if name in params}
        if params.get("factors"):
            how["scale_factor"] = tuple(params["factors"])
        else:
            how["size"] = (params["height"], params["width"])
        y = torch.nn.functional.interpolate(x["x"].float(), mode=mode, **how)
        return y.to(x["x"].dtype)

    return resized


def _window(params):
    return {name: tuple(params[name]) for name in ("kernel_size", "stride", "padding")}


def _avg_pool2d(torch, x, params):
    count = params["count_include_pad"]
    return torch.nn.functional.avg_pool2d(x["x"], **_window(params), count_include_pad=count)


FUNCTIONS: dict[str, Function] = {
    "upsample_nearest": _upsample_nearest,
    "resize_nearest": _resize("nearest"),
    "resize_nearest_exact": _resize("nearest-exact"),
    "resize_bilinear": _resize("bilinear"),
    "resize_bicubic": _resize("bicubic"),
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": lambda torch, x, params: torch.nn.functional.max_pool2d(x["x"], **_window(params)),
}
