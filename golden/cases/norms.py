"""Normalisations. Tiny variance finds a wrong eps; a large mean finds a one-pass variance."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


def _group_norm(label: str, x: tuple[int, int, int, int], num_groups=32, eps=1e-5, data="bell") -> Case:
    N, C, H, W = x
    inputs = {"x": Recipe(x, data=data), "weight": Recipe((C,), offset=1.0), "bias": Recipe((C,))}
    name = f"group_norm/f32/{label}-n{N}-c{C}-h{H}-w{W}-g{num_groups}"
    return Case(name, "group_norm", inputs, {"num_groups": num_groups, "eps": eps})


def _layer_norm(label: str, x: tuple[int, ...], affine=True, eps=1e-5, data="bell") -> Case:
    inputs = {"x": Recipe(x, data=data)}
    if affine:
        inputs |= {"weight": Recipe(x[-1:], offset=1.0), "bias": Recipe(x[-1:])}
    return Case(f"layer_norm/f32/{label}-x{'x'.join(map(str, x))}", "layer_norm", inputs, {"eps": eps})


def _rms_norm(label: str, x: tuple[int, ...], eps=1e-6, data="bell") -> Case:
    inputs = {"x": Recipe(x, data=data), "weight": Recipe(x[-1:], offset=1.0)}
    return Case(f"rms_norm/f32/{label}-x{'x'.join(map(str, x))}", "rms_norm", inputs, {"eps": eps})


CASES = [
    _group_norm("plain", (2, 64, 9, 7)),
    _group_norm("unet", (2, 320, 5, 4)),
    _group_norm("vae", (1, 96, 6, 11), eps=1e-6),
    _group_norm("tiny", (2, 64, 6, 5), data="tiny"),
    _group_norm("mean", (2, 64, 6, 5), data="shifted"),
    _group_norm("groups", (3, 33, 4, 5), num_groups=11),
    _group_norm("outliers", (1, 64, 8, 6), data="outliers"),
    _layer_norm("plain", (2, 77, 64)),
    _layer_norm("awkward", (33, 77)),
    _layer_norm("bare", (2, 33, 320), affine=False, eps=1e-6),
    _layer_norm("tiny", (33, 320), data="tiny"),
    _layer_norm("mean", (20, 132), data="shifted"),
    _rms_norm("plain", (2, 33, 77)),
    _rms_norm("heads", (2, 20, 3, 128)),
    _rms_norm("tiny", (33, 320), data="tiny"),
]
