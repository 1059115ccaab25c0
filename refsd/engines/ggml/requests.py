"""The precision that a caller may request of a product: what the engines ggml-prec-* request, and so declare.

ggml 0.24 and later: ggml_prec_set_acc names the least precise type of sums, ggml_prec_set_src the one to which the
second factor of ggml_mul_mat may be rounded; more precision is allowed. Older ones know sums in float32 alone.
"""

from dataclasses import replace
from typing import NamedTuple

from refsd.engines.ggml.library import Library
from refsd.golden.case import Case
from refsd.kernels.linear_quantized import DOTS
from refsd.numerics.profiles import Float16Sums, Numerics

# ggml.h, ggml_prec
_PRECISIONS = {"f32": 10, "bf16": 15, "f16": 20, "q8": 30}
# operation, as ggml_op_desc names it -> how older versions request the precision of its sums
_OLDER = {"MUL_MAT": "ggml_mul_mat_set_prec", "FLASH_ATTN_EXT": "ggml_flash_attn_ext_set_prec"}
PREFIX = "ggml-prec-"


class Request(NamedTuple):
    """
    sums:   the least precise type of sums: ggml has none of 8 bits
    factor: the least precise type of the second factor of ggml_mul_mat; ggml takes no request for attention's
    """

    sums: str
    factor: str


# What follows the engine's name -> what it requests.
REQUESTS = {
    "f32": Request("f32", "f32"),
    "bf16": Request("bf16", "bf16"),
    "f16": Request("f16", "f16"),
    "q8": Request("f32", "q8"),
}


def offered(library: Library) -> list[str]:
    """Return the requests that a libggml takes."""
    if "ggml_prec_set_acc" in library and "ggml_prec_set_src" in library:
        return list(REQUESTS)
    return ["f32"] if all(function in library for function in _OLDER.values()) else []


def takes_factors(offers: list[str]) -> bool:
    """Return True if a libggml that offers these requests takes one for the second factor, too."""
    return "q8" in offers


def request_of(engine: str) -> Request | None:
    """Return what an engine requests; None if nothing."""
    return REQUESTS.get(engine.removeprefix(PREFIX)) if engine.startswith(PREFIX) else None


def calls(op: str, request: Request, newest: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Return the functions that request the precision of a node, and their arguments behind it.

    op: as ggml_op_desc names it. newest: whether ggml_prec_set_acc is there
    """
    if op not in _OLDER:
        return []
    sums = _PRECISIONS[request.sums]
    if not newest:
        return [(_OLDER[op], (sums,))]
    factor = [("ggml_prec_set_src", (_PRECISIONS[request.factor], 1))] if op == "MUL_MAT" else []
    return [("ggml_prec_set_acc", (sums,)), *factor]


def request(library: Library, node: int, wish: Request) -> None:
    """Request the precision of a node that takes a request. Raises RuntimeError if ggml does not accept it."""
    op = library.ggml_op_desc(node).decode()
    for function, arguments in calls(op, wish, takes_factors(offered(library))):
        if getattr(library, function)(node, *arguments) is False:
            raise RuntimeError(f"{function}{arguments} of a {op} returned false")


def declared(own: Numerics, wish: Request, case: Case, factors: bool) -> Numerics:
    """Return the least precise numerics that a request allows.

    own:     what the back end declares without a request: it holds for what nobody requests, as attention's factors
    factors: whether the second factor's precision was requested, too

    No back end of ggml 0.25.3 adds up in bfloat16, and refsd emulates no such sums: bf16 is declared as float32.
    """
    halves = wish.sums == "f16"
    requested = {"sums": wish.sums.upper()} | ({"activations": wish.factor.upper()} if factors else {})
    sums = {"linear": Float16Sums()} if halves else {}
    wished = replace(own, sums={}, flash_sum="f16" if halves else None, requested=requested)
    if factors:
        wished = replace(wished, **_factors(wish, case))
    # Of factors that are not float16 nobody adds up products in float16.
    through = wished.input_of(case.inputs["weight"].type) if case.op == "linear" else None
    wished = replace(wished, sums=sums if through == "f16" else {})
    return replace(wished, name=f"{own.name}, {wish.sums.upper()} sums requested")


def _factors(wish: Request, case: Case) -> dict:
    """Return the fields for a linear layer's input; ggml's own type where the request allows it.

    The weight's precision cannot be requested: below F32, `products` rounds it as the input may be.
    """
    if case.op != "linear" or wish.factor == "f32":
        return {"activations": {}, "products": None}
    weight, K = case.inputs["weight"].type, case.inputs["weight"].shape[-1]
    if wish.factor == "q8":
        usual = DOTS[weight].activation if weight in DOTS else "q8_0"
        through = usual if K % 32 == 0 else "bf16"
        return {"activations": {weight: through}, "products": None}
    # A rank above F16, and coarser: ggml rounds to it beside weights in bfloat16.
    through = "bf16" if "bf16" in (wish.factor, weight) else "f16"
    return {"activations": {weight: through}, "products": through}
