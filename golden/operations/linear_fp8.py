"""Linear layers that multiply in 8-bit floats."""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from refsd.golden.mutations import Wrong
from refsd.golden.operation import Mutant, Operation
from refsd.golden.operations.few_bits import PRODUCT_INPUTS, product, product_bound, product_case
from refsd.golden.operations.few_bits_bugs import (
    Parts,
    product_mutants,
    read_on,
    row_mutants,
    scale_of_the_first,
    with_rule,
    wrong,
)
from refsd.golden.recipe import Recipe
from refsd.kernels.quant.activation_codes import divided
from refsd.numerics.quantization import Quantization, Quantized

_TYPES = ("f8_e4m3", "f8_e5m2")
_DTYPES = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}


def _rule(params) -> Quantization:
    return Quantization(params["activations"], params["scales"])


def _other_type(parts: Parts) -> np.ndarray | None:
    """Under the scale of the right type: a larger range, or one that clips."""
    other = "f8_e5m2" if parts.how.type == "f8_e4m3" else "f8_e4m3"
    return with_rule(type=other, largest=parts.how.reach)(parts)


def _not_clipped(parts: Parts) -> np.ndarray | None:
    """Beyond the largest number the cast gives NaN (E4M3) or infinity (E5M2)."""
    if parts.static is None:
        return None
    with np.errstate(all="ignore"):
        codes = divided(parts.x, parts.static).astype(_DTYPES[parts.how.type]).astype(np.float32)
        return parts.result(Quantized(codes, parts.static.reshape((1,) * parts.x.ndim)))


def _limited_to(largest: float) -> Callable[[Parts], np.ndarray | None]:
    """Numbers end at another format's largest, under the scale of the right one."""

    def change(parts: Parts) -> np.ndarray | None:
        if parts.how.grid.largest <= largest:
            return None
        q = parts.quantized()
        return parts.result(q._replace(values=q.values.clip(-largest, largest)))

    return change


def _subnormals_flushed(parts: Parts) -> np.ndarray:
    """Subnormal numbers of the format flushed to 0."""
    q = parts.quantized()
    least = np.float32(2.0 ** (parts.how.grid.exponent or 0))
    return parts.result(q._replace(values=np.where(np.abs(q.values) < least, np.float32(0), q.values)))


def _e4m3_only(change) -> Wrong:
    return wrong(_rule, lambda parts: change(parts) if parts.how.type == "f8_e4m3" else None)


def _case(label: str, x, out: int, *, per_row=False, weight_type="f8_e4m3", **more):
    params = {name: more.pop(name) for name in ("scales", "activations") if name in more}
    weight = {
        "weight": Recipe((out, x[-1]), weight_type, exponent=-11),
        "weight_scale": Recipe((out if per_row else 1,), data="positive", exponent=-25),
    }
    return product_case("linear_fp8", label, x, out, weight, params, **more)


LINEAR_FP8 = Operation(
    "linear_fp8",
    "Round activations to 8-bit floats, multiply them by a matrix of such, apply both scales, add a bias.",
    family="linear",
    inputs=PRODUCT_INPUTS,
    output="[..., O]",
    run=product(_rule),
    bound=product_bound(_rule),
    mutants=(
        *product_mutants(_rule),
        *read_on(_rule),
        *row_mutants(_rule),
        *(Mutant(name, wrong(_rule, change)) for name, change in scale_of_the_first(1024, 8192).items()),
        Mutant("activations in the other 8-bit float", wrong(_rule, _other_type)),
        Mutant("NaN or infinity beyond the largest number", wrong(_rule, _not_clipped)),
        *(
            Mutant(f"numbers beyond {n}, {of}'s largest, limited to it", wrong(_rule, _limited_to(n)))
            for n, of in ((448, "E4M3"), (240, "FNUZ"))
        ),
        Mutant("subnormal 8-bit floats flushed to zero", wrong(_rule, _subnormals_flushed)),
        Mutant("E4M3 that ends at 240, as FNUZ has it", _e4m3_only(with_rule(largest=240.0))),
    ),
    cases=(
        _case("tokens", (77, 320), 33),
        _case("rows-tokens", (33, 256), 48, per_row=True, scales="row"),
        _case("batch", (2, 9, 96), 16),
        _case("row", (1, 320), 80, bias=False),
        _case("awkward", (2, 13, 77), 33, scales="row", per_row=True),
        _case("outliers", (9, 256), 32, x_data="outliers"),
        _case("rows", (20, 160), 48, x_data="rows", n=6, scales="row", per_row=True),
        # The largest row sets the scale of all: others are subnormal numbers.
        _case("one-scale-rows", (20, 160), 48, x_data="rows", n=6),
        _case("e5m2", (17, 128), 32, activations="f8_e5m2"),
        _case("e5m2-weight", (17, 128), 32, weight_type="f8_e5m2"),
        _case("given", (20, 128), 32, static=-7),
        _case("given-ties", (20, 96), 32, static=4, x_data="integers", exponent=0),
        _case("given-saturated", (20, 128), 32, static=-8, exponent=-13),
        _case("given-e5m2-saturated", (20, 128), 32, static=-14, exponent=-13, activations="f8_e5m2"),
    ),
    params={"scales": "tensor", "activations": "f8_e4m3"},
    fits=lambda shapes, params: params["activations"] in _TYPES and params["scales"] in ("row", "tensor"),
)

OPERATIONS = (LINEAR_FP8,)
