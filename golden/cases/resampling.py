"""Resampling up, down, and by awkward fractions; pooling with unequal windows and strides."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


def _resize(kind: str, label: str, x: tuple[int, int, int, int], size: tuple[int, int], **how) -> Case:
    N, C, H, W = x
    params = {"height": size[0], "width": size[1], **how}
    name = f"resize_{kind}/f32/{label}-n{N}-c{C}-h{H}-w{W}-to{size[0]}x{size[1]}"
    return Case(name, f"resize_{kind}", {"x": Recipe(x)}, params)


def _pool(kind: str, label: str, x: tuple[int, int, int, int], window, stride, padding=(0, 0), **how) -> Case:
    """Numbers below zero, for there a zero of the border would win."""
    N, C, H, W = x
    params = {"kernel_size": window, "stride": stride, "padding": padding, **how}
    inputs = {"x": Recipe(x, offset=-8.0)}
    return Case(f"{kind}_pool2d/f32/{label}-n{N}-c{C}-h{H}-w{W}", f"{kind}_pool2d", inputs, params)


_CORNERS, _ANTIALIAS = {"align_corners": True}, {"antialias": True}

CASES = [
    _resize("nearest", "up", (2, 3, 5, 7), (8, 16)),
    _resize("nearest", "down", (2, 3, 16, 20), (6, 8)),
    *(
        _resize(kind, label, (2, 3, *old), new, **how)
        for kind in ("bilinear", "bicubic")
        for label, old, new, how in (
            ("up", (5, 7), (13, 11), {}),
            ("down", (12, 9), (5, 7), {}),
            ("corners-up", (5, 7), (13, 11), _CORNERS),
            ("corners-down", (12, 9), (5, 7), _CORNERS),
            ("smooth-down", (20, 14), (6, 5), _ANTIALIAS),
            ("smooth-up", (4, 6), (7, 15), _ANTIALIAS),
        )
    ),
    _pool("avg", "plain", (2, 7, 9, 12), (2, 3), (2, 3)),
    _pool("avg", "border", (2, 7, 9, 12), (3, 5), (2, 1), (1, 2)),
    _pool("avg", "inside", (2, 7, 9, 12), (3, 5), (2, 1), (1, 2), count_include_pad=False),
    _pool("max", "plain", (2, 7, 9, 12), (2, 3), (2, 3)),
    _pool("max", "border", (2, 7, 9, 12), (3, 5), (2, 1), (1, 2)),
]
