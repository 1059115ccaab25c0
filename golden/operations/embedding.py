"""Look up rows of a table of any storage type."""

import numpy as np

from refsd.golden.block_mutants import block_mutants
from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import answer, first_of_batch, other_input
from refsd.golden.operation import Mutant, Operation
from refsd.golden.recipe import Recipe
from refsd.numerics.tensor import stored

_USUAL = ("f32", "f16", "q4_0", "q8_0", "q4_k", "q6_k", "q3_k", "f8_e4m3")
_FEW_BITS = ("iq1_m", "iq2_xxs", "iq4_nl", "tq1_0", "tq2_0", "mxfp4")


def _case(type: str) -> Case:
    ids = Recipe((2, 77), "i32", data="token_ids", exponent=0, n=33)
    return Case(f"embedding/{type}/v33-d256", "embedding", {"ids": ids, "weight": Recipe((33, 256), type)})


def _without_last_row(op, inputs, params):
    ids = np.minimum(inputs["ids"].values(), inputs["weight"].shape[0] - 2)
    return answer(op, {**inputs, "ids": stored(ids)}, params)


EMBEDDING = Operation(
    "embedding",
    "Take a row of the table (of any storage type) for each id.",
    family="linear",
    inputs={"ids": "[...], each below V", "weight": "[V, D]"},
    output="[..., D]",
    run=lambda a, inputs, params: a.embedding(inputs["ids"].values(), a.expand(inputs["weight"])),
    bound=movement,
    mutants=(
        Mutant("the row before", other_input("ids", lambda ids: np.maximum(ids - 1, 0))),
        Mutant("the next row", other_input("ids", lambda ids: np.minimum(ids + 1, ids.max()))),
        Mutant("the last row is never read, the one before it stands for it", _without_last_row),
        Mutant("batch reads the first item", other_input("ids", first_of_batch)),
        *block_mutants("weight"),
    ),
    cases=tuple(_case(type) for type in (*_USUAL, *_FEW_BITS)),
)

OPERATIONS = (EMBEDDING,)
