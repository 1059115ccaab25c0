"""Attention with masks, causal masks, grouped heads and sinks."""

from msgspec.structs import replace

from refsd.golden.block_mutants import neighbours_scale, other_blocks, swapped_nibbles, unsigned
from refsd.golden.case import Case
from refsd.golden.operation import Mutant, Operation, optional, values
from refsd.golden.operations.attention_bounds import attention_bound
from refsd.golden.operations.attention_bugs import ATTENTION_BUGS
from refsd.golden.recipe import Recipe


def _run(a, inputs, params):
    q, k, v = (values(a, inputs[name]) for name in ("q", "k", "v"))
    mask = values(a, inputs["mask"]).astype(a.numerics.compute_dtype) if "mask" in inputs else None
    diagonal = params["diagonal"] if params["causal"] else None
    return a.attention(q, k, v, params["scale"], mask, diagonal, optional(a, inputs, "sinks"))


_BELL = Recipe((), "f16")

# Hides three of eight keys; with n, every n-th query sees no key.
_HIDDEN = Recipe((), "f16", "masked")

_UNSEEN = Recipe((), "f16", "masked", n=5)

# Hides the same keys from all queries.
_KEYS = Recipe((), "f16", "masked", seed=1)

# Hides the first 8 r keys from query r.
_LATE = Recipe((), "f16", "late", n=8)


_BEYOND = {"q": Recipe((), data="rows"), "k": Recipe((), exponent=-20, offset=-200.0)}

_CACHE = {"k": Recipe((), "q8_0", exponent=-14), "v": Recipe((), "q4_0", exponent=-11)}


def _case(
    label: str,
    B: int,
    L: int,
    J: int,
    H: int,
    D: int,
    G=0,
    E=0,
    mask: Recipe | None = None,
    sinks=False,
    exponent=-15,
    type="f32",
    data="bell",
    offset=0.0,
    others: dict[str, Recipe] | None = None,
    **params,
) -> Case:
    """Make a case of G heads of keys (0: H) and values of width E (0: D); the mask's shape is set here.

    offset: the mean of q; that of k is as far below 0
    others: recipes of some tensors; their shapes are set here
    """
    inputs = {
        "q": Recipe((B, L, H, D), type, data, exponent, offset),
        "k": Recipe((B, J, G or H, D), type, data, exponent, -offset or 0.0),
        "v": Recipe((B, J, G or H, E or D), type),
    }
    for name, recipe in (others or {}).items():
        inputs[name] = replace(recipe, shape=inputs[name].shape)
    if mask is not None:
        inputs["mask"] = replace(mask, shape=(B, 1, 1 if mask is _KEYS else L, J))
    if sinks:
        inputs["sinks"] = Recipe((H,))
    more = (f"-g{G}" if G else "") + (f"-e{E}" if E else "")
    return Case(f"attention/{type}/{label}-b{B}-l{L}-j{J}-h{H}-d{D}{more}", "attention", inputs, params)


ATTENTION = Operation(
    "attention",
    "softmax(scale q.k + mask) v; scale None is 1/sqrt(D); causal hides j > l + diagonal: 0 aligns the first "
    "query with the first key, J - L the last with the last. H/G neighbouring heads share keys and values. "
    "A query that sees no key gives zeros. A sink is one more score of a head, without a value.",
    family="attention",
    inputs={
        "q": "[B, L, H, D]",
        "k": "[B, J, G, D]",
        "v": "[B, J, G, E]",
        "mask?": "broadcastable to [B, H, L, J]",
        "sinks?": "[H]",
    },
    output="[B, L, H, E]",
    params={"scale": None, "causal": False, "diagonal": 0},
    run=_run,
    fits=lambda shapes, params: shapes["q"][2] % shapes["k"][2] == 0,
    bound=attention_bound,
    mutants=(
        *ATTENTION_BUGS,
        *(
            Mutant(f"the cache's {name}: {bug}", other_blocks(tensor, change))
            for name, tensor, bug, change in (
                ("keys", "k", "scale of the neighbouring block", neighbours_scale),
                ("keys", "k", "quants without their sign", unsigned),
                ("values", "v", "scale of the neighbouring block", neighbours_scale),
                ("values", "v", "nibbles in the wrong order", swapped_nibbles),
            )
        ),
    ),
    cases=(
        _case("self", 2, 35, 35, 2, 40),
        _case("cross", 2, 20, 77, 2, 40),
        _case("causal", 1, 77, 77, 2, 64, causal=True),
        # Whole tiles of queries and keys.
        _case("causal", 1, 128, 128, 2, 32, causal=True),
        _case("masked", 2, 33, 33, 3, 32, mask=_BELL),
        _case("masked-f32", 2, 20, 35, 2, 40, mask=replace(_BELL, type="f32")),
        _case("causal-masked", 2, 20, 20, 2, 32, mask=_BELL, causal=True),
        _case("hidden", 2, 33, 33, 3, 32, mask=_HIDDEN),
        _case("unseen", 2, 20, 77, 2, 40, mask=_UNSEEN),
        _case("first-corner", 1, 20, 77, 2, 32, causal=True),
        _case("last-corner", 1, 20, 77, 2, 32, causal=True, diagonal=57),
        _case("grouped", 2, 20, 33, 6, 32, G=2),
        _case("grouped", 3, 9, 20, 4, 32, G=2),
        _case("multi-query", 1, 20, 33, 4, 64, G=1, mask=_HIDDEN),
        _case("wide-values", 2, 20, 33, 2, 32, E=96),
        _case("narrow-values", 1, 33, 20, 2, 96, E=32),
        _case("sinks", 2, 20, 33, 3, 32, sinks=True),
        _case("sinks-unseen", 1, 20, 33, 4, 32, G=2, mask=_UNSEEN, sinks=True),
        _case("scaled", 1, 33, 20, 2, 80, scale=0.2),
        _case("wide", 1, 16, 132, 1, 128),
        # As many tokens as heads and channels: no axis is told by its size.
        _case("cube", 2, 16, 16, 16, 16),
        # Queries and keys in float16's range, products beyond 65504, scores of the usual size.
        _case("loud", 2, 20, 33, 2, 64, exponent=-8, scale=5e-6),
        # Scores beyond 88, whose exponential float32 cannot hold.
        _case("steep", 2, 33, 77, 2, 64, exponent=-13, scale=0.25),
        # Products below -50,000 and scores below -30,000, where a search for the maximum may begin too high.
        _case("low", 1, 20, 33, 2, 64, mask=_KEYS, data="integers", exponent=-6, offset=30.0, scale=0.6),
        # Scores of some queries beyond float16's range on either side.
        _case("beyond", 1, 40, 33, 2, 64, others=_BEYOND, scale=1.3),
        # Keys and values in the types of a cache.
        _case("cache", 1, 20, 33, 4, 64, G=2, others=_CACHE),
        _case("keys-masked", 2, 33, 77, 2, 32, mask=_KEYS),
        # The first 64 keys or more are hidden from the later queries.
        _case("late-keys", 1, 20, 160, 2, 32, mask=_LATE),
        # Factors that float16 holds: what is left is the rounding of sums.
        _case("sums", 1, 20, 320, 2, 40, type="f16"),
        # SD 1.5's widest heads; more keys and queries than a block has threads.
        _case("wide-heads", 2, 9, 33, 2, 160),
        _case("many-keys", 1, 5, 1100, 1, 40),
        # More keys than a picture of 64 by 64 latents has tokens.
        _case("many-keys", 1, 3, 4100, 2, 32),
        _case("many-queries", 1, 1100, 9, 2, 32),
        # One query of more heads to a head of keys than a tile of 16 has rows.
        _case("one-query", 2, 1, 77, 48, 32, G=2),
    ),
)

OPERATIONS = (ATTENTION,)
