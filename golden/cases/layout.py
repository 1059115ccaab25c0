"""What only moves numbers, and must not lose a bit; and two shapes that meet."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_PICTURE = Recipe((2, 5, 6, 8))
_WIDER = Recipe((2, 3, 5, 7))
_SIDES = {"padding": (2, 1, 1, 2)}
_INNER = {"channels_last": True}


def _two(op: str, label: str, a: tuple[int, ...], b: tuple[int, ...]) -> Case:
    name = f"{op}/f32/{label}-{'x'.join(map(str, a))}-{'x'.join(map(str, b))}"
    return Case(name, op, {"a": Recipe(a), "b": Recipe(b)})


CASES = [
    Case("pixel_unshuffle/f32/n2-c5-h6-w8", "pixel_unshuffle", {"x": _PICTURE}),
    Case("pixel_shuffle/f32/n2-c20-h3-w5", "pixel_shuffle", {"x": Recipe((2, 20, 3, 5))}),
    Case("patchify/f32/outer-n2-c5-h6-w8", "patchify", {"x": _PICTURE}),
    Case("patchify/f32/inner-n2-c5-h6-w8", "patchify", {"x": _PICTURE}, _INNER),
    Case("patchify/f32/three-n1-c7-h6-w9", "patchify", {"x": Recipe((1, 7, 6, 9))}, {"patch": 3}),
    Case("unpatchify/f32/outer-n2-l12-d20", "unpatchify", {"x": Recipe((2, 12, 20))}, {"height": 3}),
    Case("unpatchify/f32/inner-n2-l12-d20", "unpatchify", {"x": Recipe((2, 12, 20))}, {"height": 4, **_INNER}),
    *(
        Case(f"pad/f32/{mode}-n2-c5-h6-w8", "pad", {"x": _PICTURE}, {**_SIDES, "mode": mode})
        for mode in ("zero", "replicate", "reflect", "circular")
    ),
    Case("roll/f32/n2-c5-h6-w8", "roll", {"x": _PICTURE}, {"down": 2, "right": -3}),
    Case("concat/f32/channels-n2-h6-w8", "concat", {"a": _PICTURE, "b": Recipe((2, 3, 6, 8))}),
    Case("concat/f32/tokens-n2-d20", "concat", {"a": Recipe((2, 7, 20)), "b": Recipe((2, 5, 20))}),
    Case(
        "concat/f32/width-n2-c3-h5", "concat", {"a": Recipe((2, 3, 5, 4)), "b": Recipe((2, 3, 5, 7))}, {"axis": 3}
    ),
    *(
        _two(op, label, (2, 6, 5, 7), b)
        for op in ("add", "mul")
        for label, b in (("channel", (1, 6, 1, 1)), ("item", (2, 6, 1, 1)), ("row", (1, 1, 5, 7)))
    ),
]
