"""Softmax, attention, and the timestep's embedding."""

from msgspec.structs import replace

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_BELL = Recipe((), "f16")
# Three of eight keys hidden; with n every n-th query sees none.
_HIDDEN = Recipe((), "f16", "masked")
_UNSEEN = Recipe((), "f16", "masked", n=5)


def _attention(
    label: str, B: int, L: int, J: int, H: int, D: int, G=0, E=0, mask: Recipe | None = None, sinks=False, **params
) -> Case:
    """G heads of keys (0: H), values of width E (0: D); the mask's recipe takes its shape here."""
    inputs = {
        "q": Recipe((B, L, H, D)),
        "k": Recipe((B, J, G or H, D)),
        "v": Recipe((B, J, G or H, E or D)),
    }
    if mask is not None:
        inputs["mask"] = replace(mask, shape=(B, 1, L, J))
    if sinks:
        inputs["sinks"] = Recipe((H,))
    more = (f"-g{G}" if G else "") + (f"-e{E}" if E else "")
    return Case(f"attention/f32/{label}-b{B}-l{L}-j{J}-h{H}-d{D}{more}", "attention", inputs, params)


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
    Case(
        "softmax/f32/hidden-x2x2x20x33",
        "softmax",
        {"x": Recipe((2, 2, 20, 33), exponent=-13), "mask": Recipe((20, 33), "f16", "masked")},
    ),
    Case(
        "softmax/f32/sinks-x2x3x20x33",
        "softmax",
        {"x": Recipe((2, 3, 20, 33), exponent=-13), "sinks": Recipe((3,), exponent=-13)},
    ),
    _attention("self", 2, 35, 35, 2, 40),
    _attention("cross", 2, 20, 77, 2, 40),
    _attention("causal", 1, 77, 77, 2, 64, causal=True),
    _attention("masked", 2, 33, 33, 3, 32, mask=_BELL),
    _attention("hidden", 2, 33, 33, 3, 32, mask=_HIDDEN),
    _attention("unseen", 2, 20, 77, 2, 40, mask=_UNSEEN),
    _attention("first-corner", 1, 20, 77, 2, 32, causal=True),
    _attention("last-corner", 1, 20, 77, 2, 32, causal=True, diagonal=57),
    _attention("grouped", 2, 20, 33, 6, 32, G=2),
    _attention("multi-query", 1, 20, 33, 4, 64, G=1, mask=_HIDDEN),
    _attention("wide-values", 2, 20, 33, 2, 32, E=96),
    _attention("narrow-values", 1, 33, 20, 2, 96, E=32),
    _attention("sinks", 2, 20, 33, 3, 32, sinks=True),
    _attention("sinks-unseen", 1, 20, 33, 4, 32, G=2, mask=_UNSEEN, sinks=True),
    _attention("scaled", 1, 33, 20, 2, 80, scale=0.2),
    _attention("wide", 1, 16, 132, 1, 128),
    _timesteps("unet", 320),
    _timesteps("flux", 256),
    _timesteps("odd", 33),
    _timesteps("fractional", 64, fraction=3),
    _timesteps("period", 132, max_period=1000.0),
]
