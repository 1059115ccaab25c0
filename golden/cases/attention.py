"""Softmax, attention, and the timestep's embedding."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


def _attention(label: str, B: int, L: int, J: int, H: int, D: int, mask=False, **params) -> Case:
    inputs = {
        "q": Recipe((B, L, H, D)),
        "k": Recipe((B, J, H, D)),
        "v": Recipe((B, J, H, D)),
    }
    if mask:
        inputs["mask"] = Recipe((B, 1, L, J), "f16")
    return Case(f"attention/f32/{label}-b{B}-l{L}-j{J}-h{H}-d{D}", "attention", inputs, params)


def _timesteps(label: str, dim: int, max_period=10000.0, fraction=0) -> Case:
    """Timesteps in 0..1000, in steps of 2**-fraction."""
    t = Recipe((5,), data="token_ids", n=1000 << fraction, exponent=-fraction)
    return Case(
        f"timestep_embedding/f32/{label}-d{dim}",
        "timestep_embedding",
        {"t": t},
        {"dim": dim, "max_period": max_period},
    )


CASES = [
    Case("softmax/f32/plain-x33x77", "softmax", {"x": Recipe((33, 77))}),
    Case("softmax/f32/scaled-x2x3x20x77", "softmax", {"x": Recipe((2, 3, 20, 77), exponent=-12)}, {"scale": 0.125}),
    Case(
        "softmax/f32/masked-x2x2x20x33",
        "softmax",
        {"x": Recipe((2, 2, 20, 33), exponent=-13), "mask": Recipe((20, 33), "f16")},
        {"scale": 0.25},
    ),
    _attention("self", 2, 35, 35, 2, 40),
    _attention("cross", 2, 20, 77, 2, 40),
    _attention("causal", 1, 77, 77, 2, 64, causal=True),
    _attention("masked", 2, 33, 33, 3, 32, mask=True),
    _attention("scaled", 1, 33, 20, 2, 80, scale=0.2),
    _attention("wide", 1, 16, 132, 1, 128),
    _timesteps("unet", 320),
    _timesteps("flux", 256),
    _timesteps("odd", 33),
    _timesteps("fractional", 64, fraction=3),
    _timesteps("period", 132, max_period=1000.0),
]
