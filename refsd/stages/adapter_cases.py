"""The adapter files that engines are asked to merge (refsd/stages/adapter.py)."""

from typing import Any

from refsd.golden.recipe import Recipe
from refsd.stages.stage import case


def _alpha(value: float) -> Recipe:
    return Recipe((), data="constant", offset=value)


def _factor(*shape: int) -> Recipe:
    return Recipe(shape, exponent=-18)


def _case(
    label: str, weight: tuple[int, ...], tensors: dict[str, Recipe], kind="f32", data="bell", n=0, **params: Any
):
    """kind, data, n: of the weight's recipe"""
    return case("adapter", label, {"weight": Recipe(weight, kind, data, -17, n=n), **tensors}, **params)


def _lora(name: str, O: int, I: int, rank: int, alpha: float | None = None) -> dict[str, Recipe]:
    made = {f"{name}.lora_down.weight": _factor(rank, I), f"{name}.lora_up.weight": _factor(O, rank)}
    return made | ({} if alpha is None else {f"{name}.alpha": _alpha(alpha)})


_NAME = "lora_unet_layer"
_PEFT = "base_model.model.layer"


def _peft(O: int, I: int) -> dict[str, Recipe]:
    return {f"{_PEFT}.lora_A.weight": _factor(4, I), f"{_PEFT}.lora_B.weight": _factor(O, 4)}


_FUSED = {"to_q": [0, 16], "to_k": [16, 16], "to_v": [32, 16]}
CASES = (
    _case("lora-kohya", (48, 33), _lora(_NAME, 48, 33, 4, 1.0)),
    _case("lora-no-alpha", (32, 32), _lora(_NAME, 32, 32, 8), strength=0.5),
    _case("lora-peft", (24, 40), _peft(24, 40) | {f"{_PEFT}.alpha": _alpha(8.0)}, strength=-0.75),
    _case(
        "lora-conv",
        (6, 8, 3, 3),
        {
            f"{_NAME}.lora_down.weight": _factor(4, 8, 3, 3),
            f"{_NAME}.lora_up.weight": _factor(6, 4, 1, 1),
            f"{_NAME}.alpha": _alpha(2.0),
        },
    ),
    _case(
        "lora-tucker",
        (6, 8, 3, 3),
        {
            f"{_NAME}.lora_down.weight": _factor(4, 8, 1, 1),
            f"{_NAME}.lora_mid.weight": Recipe((4, 4, 3, 3), exponent=-16),
            f"{_NAME}.lora_up.weight": _factor(6, 4, 1, 1),
            f"{_NAME}.alpha": _alpha(3.0),
        },
    ),
    _case(
        "lora-fused",
        (48, 16),
        _lora("to_q", 16, 16, 2, 1.0) | _lora("to_k", 16, 16, 4, 2.0) | _lora("to_v", 16, 16, 8, 2.0),
        rows=_FUSED,
    ),
    # The file has both streams of a block; the layer is the picture's, and add_* the text's.
    _case(
        "lora-two-streams",
        (48, 16),
        {
            name: recipe
            for prefix, ranks in (("to_{}", (2, 4, 8)), ("add_{}_proj", (4, 8, 2)))
            for part, rank in zip("qkv", ranks, strict=True)
            for name, recipe in _lora(prefix.format(part), 16, 16, rank, 3.0).items()
        },
        rows=_FUSED | {f"add_{part}_proj": rows for part, rows in zip("qkv", _FUSED.values(), strict=True)},
        elsewhere=["add_q_proj", "add_k_proj", "add_v_proj"],
    ),
    # Of two transformers, one for much noise and one for little, the file is the other one's.
    _case("lora-other-transformer", (16, 24), _lora("high_noise", 16, 24, 4, 2.0), elsewhere=["high_noise"]),
    _case("tag-one", (16, 24), _lora(_NAME, 16, 24, 4, 2.0), tag="<lora:style:0.5>"),
    _case("tag-two-unet", (16, 24), _lora(_NAME, 16, 24, 4, 2.0), tag="<lora:style:0.7:0.4>"),
    _case("tag-two-text", (16, 24), _lora(_NAME, 16, 24, 4), tag="<lora:s:0.7:0.4>", component="text"),
    _case(
        "loha",
        (24, 20),
        {
            f"{_NAME}.hada_{w}_{x}": Recipe(s, exponent=-17)
            for w in ("w1", "w2")
            for x, s in (("a", (24, 4)), ("b", (4, 20)))
        }
        | {f"{_NAME}.alpha": _alpha(1.0)},
    ),
    _case(
        "loha-tucker",
        (6, 8, 3, 3),
        {
            f"{_NAME}.hada_{w}_{x}": Recipe(s, exponent=-16)
            for w in ("w1", "w2")
            for x, s in (("a", (4, 6)), ("b", (4, 8)))
        }
        | {f"{_NAME}.hada_{t}": Recipe((4, 4, 3, 3), exponent=-16) for t in ("t1", "t2")}
        | {f"{_NAME}.alpha": _alpha(2.0)},
    ),
    _case(
        "lokr",
        (24, 36),
        {
            f"{_NAME}.lokr_w1": _factor(4, 4),
            f"{_NAME}.lokr_w2_a": _factor(6, 3),
            f"{_NAME}.lokr_w2_b": _factor(3, 9),
            f"{_NAME}.alpha": _alpha(1.0),
        },
    ),
    _case(
        "lokr-full",
        (24, 36),
        {f"{_NAME}.lokr_w1": _factor(4, 4), f"{_NAME}.lokr_w2": _factor(6, 9)},
        strength=0.5,
    ),
    # Both factors are stored whole: alpha belongs to a rank that no factor has, and counts for nothing.
    _case(
        "lokr-full-alpha",
        (24, 36),
        {
            f"{_NAME}.lokr_w1": _factor(4, 4),
            f"{_NAME}.lokr_w2": _factor(6, 9),
            f"{_NAME}.alpha": _alpha(2.5),
        },
        strength=0.75,
    ),
    _case(
        "lokr-conv",
        (6, 8, 3, 3),
        {
            f"{_NAME}.lokr_w1": _factor(2, 2),
            f"{_NAME}.lokr_w2": Recipe((3, 4, 3, 3), exponent=-17),
            f"{_NAME}.alpha": _alpha(3.0),
        },
    ),
    _case(
        "lokr-tucker",
        (8, 6, 3, 3),
        {
            f"{_NAME}.lokr_w1": _factor(2, 2),
            f"{_NAME}.lokr_w2_a": Recipe((3, 4), exponent=-17),
            f"{_NAME}.lokr_w2_b": Recipe((3, 3), exponent=-17),
            f"{_NAME}.lokr_t2": Recipe((3, 3, 3, 3), exponent=-17),
        },
        strength=0.75,
    ),
    # What LyCORIS trains with use_scalar: a factor of the whole change, beside alpha.
    _case(
        "lokr-scalar",
        (24, 36),
        {
            f"{_NAME}.lokr_w1": _factor(4, 4),
            f"{_NAME}.lokr_w2_a": _factor(6, 3),
            f"{_NAME}.lokr_w2_b": _factor(3, 9),
            f"{_NAME}.alpha": _alpha(2.0),
            f"{_NAME}.scalar": _alpha(0.625),
        },
        strength=0.75,
    ),
    _case("lora-scalar", (20, 24), _lora(_NAME, 20, 24, 4, 3.0) | {f"{_NAME}.scalar": _alpha(-1.375)}),
    _case(
        "dora",
        (32, 32),
        _lora(_NAME, 32, 32, 4, 2.0) | {f"{_NAME}.dora_scale": Recipe((32, 1), exponent=-19, offset=0.5)},
        strength=0.5,
    ),
    _case(
        "dora-comfyui",
        (24, 40),
        _lora(_NAME, 24, 40, 4, 2.0) | {f"{_NAME}.dora_scale": Recipe((24, 1), exponent=-19, offset=0.5)},
        rule="comfyui",
        strength=0.7,
    ),
    _case(
        "dora-peft",
        (24, 40),
        {
            "layer.lora_A.weight": _factor(4, 40),
            "layer.lora_B.weight": _factor(24, 4),
            "layer.lora_magnitude_vector": Recipe((24,), exponent=-19, offset=0.5),
        },
        strength=0.5,
    ),
    _case(
        "dora-peft-square",
        (32, 32),
        {
            "layer.lora_A.weight": _factor(4, 32),
            "layer.lora_B.weight": _factor(32, 4),
            "layer.lora_magnitude_vector": Recipe((32,), exponent=-19, offset=0.5),
        },
    ),
    _case(
        "dora-columns",
        (32, 32),
        _lora(_NAME, 32, 32, 4) | {f"{_NAME}.dora_scale": Recipe((1, 32), exponent=-19, offset=0.5)},
        strength=0.75,
    ),
    _case("lora-rank-1", (20, 24), _lora(_NAME, 20, 24, 1, 2.0), strength=0.75),
    _case("oft-half", (24, 16), {f"{_NAME}.oft_blocks": Recipe((3, 8, 8), exponent=-19)}, strength=0.5),
    _case(
        "oft-constraint",
        (24, 16),
        {f"{_NAME}.oft_blocks": Recipe((3, 8, 8), exponent=-17), f"{_NAME}.alpha": _alpha(0.0625)},
    ),
    _case(
        "oft-rescaled",
        (24, 24),
        {
            f"{_NAME}.oft_blocks": Recipe((3, 8, 8), exponent=-19),
            f"{_NAME}.rescale": Recipe((24, 1), exponent=-20, offset=1.0),
        },
    ),
    _case(
        "boft-rescaled",
        (16, 24),
        {
            f"{_NAME}.oft_blocks": Recipe((2, 4, 4, 4), exponent=-18),
            f"{_NAME}.rescale": Recipe((16, 1), exponent=-20, offset=1.0),
        },
    ),
    # Three stages, which pair rows 1, 2 and 4 apart.
    _case("boft", (24, 24), {f"{_NAME}.oft_blocks": Recipe((3, 12, 2, 2), exponent=-18)}, strength=0.75),
    # PEFT's settings, adapter_config.json: alpha of a pattern; alpha over the root of the rank.
    _case("lora-peft-settings", (20, 24), _peft(20, 24), settings={"lora_alpha": 8, "alpha_pattern": {"lay.*": 6}}),
    _case("lora-peft-rslora", (20, 24), _peft(20, 24), settings={"lora_alpha": 6, "use_rslora": True}),
    _case(
        "lora-peft-bias",
        (20, 24),
        {"bias": Recipe((20,)), **_peft(20, 24), f"{_PEFT}.lora_B.bias": Recipe((20,), exponent=-17)},
        settings={"lora_alpha": 6},
        strength=0.75,
    ),
    # A layer of other inputs than queries, and of fewer keys; no part has the rank that the file names first.
    _case(
        "lora-peft-fused",
        (48, 20),
        {
            f"{part}.lora_{half}.weight": _factor(*shape)
            for part, rows, rank in (("to_q", 24, 2), ("to_k", 12, 4), ("to_v", 12, 8))
            for half, shape in (("A", (rank, 20)), ("B", (rows, rank)))
        },
        rows={"to_q": [0, 24], "to_k": [24, 12], "to_v": [36, 12]},
        settings={"lora_alpha": 6, "r": 16, "rank_pattern": {"to_q": 2, "to_k": 4, "to_v": 8}},
    ),
    # Merged in float, whatever the layer is stored as.
    _case("lora-on-q4_0", (20, 64), _lora(_NAME, 20, 64, 4, 2.0), kind="q4_0"),
    # Rows that are 0, and stay so: their length is 0.
    _case(
        "dora-empty-rows",
        (20, 24),
        {
            f"{_NAME}.lora_down.weight": _factor(4, 24),
            f"{_NAME}.lora_up.weight": Recipe((20, 4), data="rows", exponent=-18, n=5),
            f"{_NAME}.dora_scale": Recipe((20, 1), exponent=-19, offset=0.5),
            f"{_NAME}.alpha": _alpha(2.0),
        },
        data="rows",
        n=5,
    ),
    _case("lora-halves-exchanged", (24, 16), _lora("modulation", 24, 16, 4, 2.0), rows={"modulation": [12, 24]}),
)
