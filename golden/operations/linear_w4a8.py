"""Linear layers that multiply in int8 what is kept in rotated codes of 4 bits."""

from collections.abc import Callable
from functools import partial

import numpy as np

from refsd.golden.mutations import Wrong, other_input
from refsd.golden.operation import Inputs, Mutant, Operation
from refsd.golden.operations.few_bits import product, product_bound, product_case
from refsd.golden.operations.few_bits_bugs import Parts, product_mutants, wrong
from refsd.golden.operations.linear_int8 import fits_rotation, int8_mutants
from refsd.golden.recipe import Recipe
from refsd.kernels.quant import w4a8
from refsd.numerics.quantization import Quantization


def _rule(params) -> Quantization:
    return Quantization("int8", "row", rotation=params["rotation"])


def _fits(shapes, params) -> bool:
    """Groups are a quarter of 16, half of it, or multiples of it."""
    width, groups = shapes["x"][-1], shapes["group_scale"][-1]
    group = width // groups if groups and width % groups == 0 else 0
    whole = group >= 4 and (16 % group == 0 or group % 16 == 0) and width % 16 == 0
    return whole and fits_rotation(params["rotation"], width)


def _parts(inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the codes, the groups' scales, and the table, if there is one."""
    codes = w4a8.unpack(inputs["weight"].values().astype(np.uint8))
    table = inputs["codebook"].values().astype(np.float32) if "codebook" in inputs else None
    return codes, inputs["group_scale"].values().astype(np.float32), table


def _weight(inputs: Inputs) -> np.ndarray:
    return w4a8.decode(*_parts(inputs))


def _read(weight_of) -> Wrong:
    """The weight read wrongly: codes, scales, table -> what is multiplied; None where the case cannot show it."""

    def change(parts: Parts) -> np.ndarray | None:
        weight = weight_of(*_parts(parts.inputs))
        if weight is None or np.array_equal(weight, parts.weight):
            return None
        parts.weight = weight.astype(np.float32)
        return parts.result(parts.quantized())

    return wrong(_rule, change, _weight)


def _to_int8(rounding, codes, scale, table) -> np.ndarray:
    return np.clip(rounding(w4a8.levels(codes, scale, table)), -127, 127)


def _away(v: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(v) + np.float32(0.5)), v)


def _wrapping(codes, scale, table) -> np.ndarray:
    return np.rint(w4a8.levels(codes, scale, table)).astype(np.int64).astype(np.int8)


def _without_table(codes, scale, table) -> np.ndarray | None:
    return None if table is None else w4a8.decode(codes, scale / np.float32(8))


def _next_entry(codes, scale, table) -> np.ndarray | None:
    return None if table is None else w4a8.decode(codes, scale, np.roll(table, -1))


def _next_group(scale: np.ndarray) -> np.ndarray | None:
    return np.roll(scale, -1, axis=1) if scale.shape[1] > 1 else None


def _transposed(scale: np.ndarray) -> np.ndarray | None:
    return np.ascontiguousarray(scale.reshape(scale.shape[::-1]).T) if 1 not in scale.shape else None


def _scaled_sums(read: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    """Scale each group's sum as another's. read: number of a group -> whose scale it has"""

    def weight(codes, scale, table) -> np.ndarray:
        i = np.arange(scale.shape[1])
        ratio = np.divide(scale[:, read(i) % i.size], scale, out=np.ones_like(scale), where=scale != 0)
        return w4a8.decode(codes, scale, table) * np.repeat(ratio, codes.shape[1] // i.size, axis=1)

    return _read(weight)


def _of_the_row(scale: np.ndarray) -> np.ndarray:
    return np.repeat(scale[:, :1], scale.shape[1], axis=1)


_SCALES = {"data": "positive", "exponent": -11}  # around 64: levels reach 127, and some are beyond


def _case(label: str, x, out: int, *, group=16, rotation=256, table=True, scales=None, **more):
    weight = {
        "weight": Recipe((out, x[-1] // 2), "u8", "token_ids", 0, n=256),
        "group_scale": Recipe((out, x[-1] // group), "f8_e4m3", **(scales or _SCALES)),
        "weight_scale": Recipe((out,), data="positive", exponent=-28),
    }
    if table:
        weight["codebook"] = Recipe((16,), exponent=-16)
    return product_case("linear_w4a8", label, x, out, weight, {"rotation": rotation}, **more)


LINEAR_W4A8 = Operation(
    "linear_w4a8",
    "Rotate activations and round them to int8, multiply them by codes of 4 bits made int8, apply both scales.",
    family="linear",
    inputs={
        "x": "[..., K]",
        "weight": "[O, K/2]",
        "group_scale": "[O, G]",
        "weight_scale": "[O]",
        "codebook?": "[16]",
        "bias?": "[O]",
    },
    output="[..., O]",
    run=product(_rule, _weight),
    bound=product_bound(_rule, _weight),
    mutants=(
        *product_mutants(_rule, _weight, given=False),
        *int8_mutants(_rule, _weight, given=False),
        Mutant(
            "codes of a byte in the other order", other_input("weight", lambda packed: packed << 4 | packed >> 4)
        ),
        Mutant("codes read as two's complement", _read(lambda codes, *rest: w4a8.decode(codes ^ 8, *rest))),
        Mutant("table missing: codes read as integers", _read(_without_table)),
        Mutant(
            "the usual table read for the file's own, or where it has none",
            _read(lambda codes, scale, table: w4a8.decode(codes, scale, w4a8.USUAL_TABLE)),
        ),
        Mutant("table read one entry on", _read(_next_entry)),
        Mutant("weight's scales of the next group", other_input("group_scale", _next_group)),
        Mutant("weight's scales of groups transposed", other_input("group_scale", _transposed)),
        Mutant("scale of each row's first group used for the row", other_input("group_scale", _of_the_row)),
        Mutant("weight's scales of groups missing", other_input("group_scale", np.ones_like)),
        Mutant("sums of groups scaled as the next group's", _scaled_sums(lambda i: i + 1)),
        Mutant("sums of each 2 groups scaled as the first's", _scaled_sums(lambda i: i // 2 * 2)),
        Mutant("sums of each 4 groups scaled as the first's", _scaled_sums(lambda i: i // 4 * 4)),
        Mutant("weight not rounded to int8 after its groups' scales", _read(w4a8.levels)),
        Mutant("weight made int8 by cutting toward zero", _read(partial(_to_int8, np.trunc))),
        Mutant("weight made int8 with ties away from zero", _read(partial(_to_int8, _away))),
        Mutant("weight beyond 127 wraps", _read(_wrapping)),
    ),
    cases=(
        _case("tokens", (77, 256), 33),
        _case("batch", (2, 9, 512), 20),
        _case("row", (1, 256), 77, bias=False),
        _case("outliers", (9, 256), 20, x_data="outliers"),
        _case("rows", (20, 256), 33, x_data="rows", n=6),
        _case("rotated16-outliers", (9, 80), 20, rotation=16, x_data="outliers"),
        _case("groups4", (7, 64), 33, group=4, rotation=64),
        _case("groups64", (20, 192), 33, group=64, rotation=64),
        # Levels of a half, and of -8: ties at every odd code.
        _case("plain-ties", (20, 256), 33, table=False, scales={"data": "constant", "offset": 2.5}),
        _case("plain-saturated", (20, 256), 33, table=False, scales={"data": "positive", "exponent": -13}),
    ),
    params={"rotation": 256},
    fits=_fits,
)

OPERATIONS = (LINEAR_W4A8,)
