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


def _l2_norm(label: str, x: tuple[int, ...], eps: float, exponent=-15) -> Case:
    inputs = {"x": Recipe(x, exponent=exponent)}
    return Case(f"l2_norm/f32/{label}-x{'x'.join(map(str, x))}", "l2_norm", inputs, {"eps": eps})


def _batch_norm(label: str, x: tuple[int, int, int, int], eps: float, exponent=-17) -> Case:
    channels = x[1:2]
    var = Recipe(channels, data="positive", exponent=exponent)
    inputs = {"x": Recipe(x), "mean": Recipe(channels), "var": var}
    return Case(f"batch_norm/f32/{label}-n{x[0]}-c{x[1]}-h{x[2]}-w{x[3]}", "batch_norm", inputs, {"eps": eps})


def _group_norm_silu(label: str, x: tuple[int, int, int, int], **how) -> Case:
    plain = _group_norm(label, x, **how)
    return Case(plain.name.replace("group_norm", "group_norm_silu"), "group_norm_silu", plain.inputs, plain.params)


def _tokens(op: str, label: str, x: tuple[int, int, int], names: tuple[str, ...], data="bell", **params) -> Case:
    """Tokens [N, L, D], and of each item [N, D] (h: tokens too)."""
    N, L, D = x
    inputs = {"x": Recipe(x, data=data)} | {name: Recipe(x if name == "h" else (N, D)) for name in names}
    return Case(f"{op}/f32/{label}-n{N}-l{L}-d{D}", op, inputs, params)


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
    Case("rms_norm/f32/bare-x2x10x132", "rms_norm", {"x": Recipe((2, 10, 132), data="tiny")}),
    _l2_norm("plain", (2, 33, 77), 1e-12),
    _l2_norm("short", (20, 132), 1e-3, exponent=-32),
    _l2_norm("near", (33, 64), 1e-6, exponent=-37),
    _batch_norm("flux2", (2, 128, 3, 5), 1e-4),
    _batch_norm("still", (2, 33, 4, 7), 1e-4, exponent=-30),
    _group_norm_silu("plain", (2, 64, 9, 7)),
    _group_norm_silu("tiny", (2, 64, 6, 5), data="tiny"),
    _group_norm_silu("groups", (3, 33, 4, 5), num_groups=11, eps=1e-6),
    _tokens("modulate", "plain", (2, 33, 77), ("shift", "scale")),
    _tokens("modulate", "wide", (3, 5, 132), ("shift", "scale"), "wide"),
    _tokens("adaptive_layer_norm", "plain", (2, 33, 77), ("shift", "scale"), eps=1e-6),
    _tokens("adaptive_layer_norm", "tiny", (3, 10, 320), ("shift", "scale"), "tiny", eps=1e-6),
    _tokens("adaptive_layer_norm", "mean", (2, 10, 132), ("shift", "scale"), "shifted", eps=1e-6),
    _tokens("gated_add", "plain", (2, 33, 77), ("h", "gate")),
    _tokens("gated_add", "wide", (3, 5, 132), ("h", "gate"), "wide"),
]
