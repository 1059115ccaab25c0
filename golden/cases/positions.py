"""Positions and times: every model's axes and theta, both pairings, both orders of sines and cosines."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


def _rope(
    label: str, x: tuple[int, int, int, int], axes_dim: tuple[int, ...], theta: float, items=1, **how
) -> Case:
    """Positions in 0..48."""
    N, L, H, D = x
    ids = Recipe((items, L, len(axes_dim)), "i32", data="token_ids", exponent=0, n=48)
    name = f"rope/f32/{label}-n{N}-l{L}-h{H}-d{D}"
    return Case(name, "rope", {"x": Recipe(x), "ids": ids}, {"axes_dim": axes_dim, "theta": theta, **how})


def _positions(label: str, dim: int, H: int, W: int) -> Case:
    """Coordinates in 0..16, no whole numbers: a grid finer than the one a model was trained on."""
    inputs = {
        "rows": Recipe((H,), data="positive", exponent=-14),
        "columns": Recipe((W,), data="positive", exponent=-14),
    }
    return Case(f"sincos_positions/f32/{label}-h{H}-w{W}-d{dim}", "sincos_positions", inputs, {"dim": dim})


def _times(label: str, dim: int, exponent=-8, **params) -> Case:
    """Times in 0..1024 (over the scale), no whole numbers."""
    inputs = {"t": Recipe((4,), data="positive", exponent=exponent)}
    return Case(f"timestep_embedding/f32/{label}-x4-d{dim}", "timestep_embedding", inputs, {"dim": dim, **params})


CASES = [
    _rope("flux", (2, 20, 3, 128), (16, 56, 56), 1e4),
    _rope("flux2", (1, 10, 3, 128), (32, 32, 32, 32), 2000.0),
    _rope("zimage", (2, 20, 3, 128), (32, 48, 48), 256.0, items=2),
    _rope("qwen3", (1, 33, 4, 128), (128,), 1e6, halves=True),
    _rope("neighbours", (2, 33, 3, 20), (20,), 500.0),
    _positions("sd3", 64, 5, 7),
    _positions("square", 20, 6, 6),
    _times("sigma", 20, exponent=-18, scale=1000.0),
    _times("ddpm", 33, freq_shift=1.0, sin_first=True),
]
