"""Attention whose scores are products of int8, as SageAttention's."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.few_bits import moves
from refsd.golden.mutations import Wrong, answer, first_of_batch, other_input, to_float16
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.operations.attention_bounds import mixed_bound, smoothed_keys
from refsd.golden.operations.attention_bugs import exchanged, first_key_head, heads_interleaved, scale_by
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels.attention_int8 import attention_int8, codes_of_blocks, smoothed
from refsd.kernels.quant.activation_codes import GRIDS, divided, to_grid
from refsd.numerics.quantization import Quantization

# One row for each head and block of tokens.
_CODES = Quantization("int8", "row", rounding="away")


def _scale(inputs, params) -> float:
    return inputs["q"].shape[-1] ** -0.5 if params["scale"] is None else params["scale"]


def _run(a, inputs, params):
    q, k, v = (values(a, inputs[name]) for name in ("q", "k", "v"))
    how = {name: params[name] for name in ("query_block", "key_block", "smooth")}
    return a.apply(attention_int8, q, k, a.round_as(v, a.numerics.products), scale=_scale(inputs, params), **how)


def _moves(x: np.ndarray, dx: np.ndarray, block: int, compute: str):
    """Bound codes_of_blocks.

    x, dx: [B, H, L, D]
    -> codes [B, H, L, D], how far each may be; scale [B, H, L, 1], its relative error
    """
    B, H, L, D = x.shape
    block = min(block, L)
    pad = [(0, 0), (0, 0), (0, -L % block), (0, 0)]
    rows, doubt = (np.pad(t, pad).reshape(B, H, -1, block * D) for t in (x, np.broadcast_to(dx, x.shape)))
    bits = moves(rows, doubt, _CODES, compute, compute)
    tokens = (t.reshape(B, H, -1, D)[:, :, :L] for t in (bits.values, bits.moved))
    scales = (np.repeat(t, block, axis=2)[:, :, :L] for t in (bits.scale, bits.relative))
    return *tokens, *scales


def _bound(run: Run) -> Bound:
    """Bound s = s_q s_k sum_d q8 k8, exact but for codes beside a tie and the scales; then as attention.

    Of x = scale q two roundings, of k its mean over J keys and the difference, which an engine may store.
    """
    q, k, v = (run.inputs[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    dq, dk, dv = (
        run.moved(name, through).transpose(0, 2, 1, 3)
        for name, through in (("q", None), ("k", None), ("v", run.numerics.products))
    )
    scale, u = _scale(run.inputs, run.params), run.u
    q, dq = scale * q, abs(scale) * (dq + 2 * u * np.abs(q))
    if run.params["smooth"]:
        k, dk = smoothed_keys(run, k, dk)
    q, mq, sq, rq = _moves(q, dq, run.params["query_block"], run.numerics.compute)
    k, mk, sk, rk, v, dv = (
        np.repeat(t, q.shape[1] // k.shape[1], axis=1)
        for t in (*_moves(k, dk, run.params["key_block"], run.numerics.compute), v, dv)
    )

    def dot(a, b):
        return a @ b.swapaxes(-1, -2)

    scales = sq * sk.swapaxes(-1, -2)
    scores = scales * dot(q, k)
    most = np.abs(k) + mk
    terms = Terms().add(
        scales * (dot(mq, most) + dot(np.abs(q), mk)),
        scales * np.sqrt((dot(mq**2, most**2) + dot(q**2, mk**2)) / 3),
    )
    terms.add((rq + rk.swapaxes(-1, -2) + gamma(5, u)) * (np.abs(scores) + terms.limit))
    return mixed_bound(run, scores, terms, v, dv)


def _steps(
    inputs, params, smooth=smoothed, q_codes=codes_of_blocks, k_codes=codes_of_blocks, scores=np.multiply, keys=None
) -> np.ndarray:
    """Compute the operation in float32, one step replaced.

    smooth:           keys [B, J, G, D] -> keys, where the case smooths them
    q_codes, k_codes: as codes_of_blocks
    scores:           sums of products of codes [B, H, L, J], the product of both scales -> scores
    keys:             codes, scales and values of the keys -> those of the keys that the softmax sees
    """
    q, k, v = (inputs[name].values().astype(np.float32) for name in ("q", "k", "v"))
    q8, sq = q_codes(q * np.float32(_scale(inputs, params)), params["query_block"])
    k8, sk = k_codes(smooth(k) if params["smooth"] else k, params["key_block"])
    if keys is not None:
        k8, sk, v = keys(k8, sk, v)
    q8, sq, k8, sk, v = (t.transpose(0, 2, 1, 3) for t in (q8, sq, k8, sk, v))
    k8, sk, v = (np.repeat(t, q8.shape[1] // t.shape[1], axis=1) for t in (k8, sk, v))
    s = scores(q8 @ k8.swapaxes(-1, -2), sq * sk.swapaxes(-1, -2))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.ascontiguousarray((p / p.sum(axis=-1, keepdims=True) @ v).transpose(0, 2, 1, 3))


def _wrong(**steps) -> Wrong:
    return lambda op, inputs, params: _steps(inputs, params, **steps)


def _scaled_by(factor: float) -> Wrong:
    return _wrong(scores=lambda sums, scales: sums * scales * np.float32(factor))


def _where_smooth(smooth) -> Wrong:
    return lambda op, inputs, params: _steps(inputs, params, smooth=smooth) if params["smooth"] else None


def _block_before(x, block):
    """Each block has the scale of the block before it."""
    q, scale = codes_of_blocks(x, block)
    return q, np.concatenate([scale[:, -1:].repeat(block, 1), scale], axis=1)[:, : scale.shape[1]]


# Whose scale of codes each of H query heads has, n of which share keys.
_OTHER_HEADS = {
    "the first of those that share keys": lambda H, n: np.arange(H) // n * n,
    "the head before": lambda H, n: np.arange(H) - 1,
    "the first head": lambda H, n: np.zeros(H, int),
}


def _of_other_heads(which) -> Wrong:
    """Multiply each query head's codes by another one's scale. which: of _OTHER_HEADS"""

    def wrong(op, inputs, params):
        heads = which(H := inputs["q"].shape[2], H // inputs["k"].shape[2])

        def q_codes(x, block):
            codes, scale = codes_of_blocks(x, block)
            return codes, scale[:, :, heads]

        return _steps(inputs, params, q_codes=q_codes) if (heads != np.arange(H)).any() else None

    return wrong


def _coded(scales, rounding="away"):
    """Round under other scales. scales: those of each head's blocks [B, L, H, 1] -> others"""

    def codes(x, block):
        scale = scales(codes_of_blocks(x, block)[1])
        return to_grid(divided(x, scale), GRIDS["int8"], rounding), scale

    return codes


_OF_ALL_HEADS = _coded(lambda scale: np.broadcast_to(scale.max(axis=2, keepdims=True), scale.shape))
_OF_128 = _coded(lambda scale: scale * np.float32(127 / 128))
_TOWARD_ZERO = _coded(lambda scale: scale, "zero")


def _half_scales(x, block):
    codes, scale = codes_of_blocks(x, block)
    return codes, to_float16(scale)


def _not_rounded(x, block):
    return x, np.ones((*x.shape[:3], 1), x.dtype)


def _other_blocks() -> Iterator[Mutant[Wrong]]:
    changes = {
        "one scale for all {}": lambda block, tokens: tokens,
        "a scale for each of the {}": lambda block, tokens: 1,
        "blocks of {} half as long": lambda block, tokens: block // 2,
        "blocks of {} twice as long": lambda block, tokens: 2 * block,
    }
    for (words, change), of in itertools.product(changes.items(), ("queries", "keys")):
        yield Mutant(words.format(of), _other_block(of, change))


def _other_block(of: str, change) -> Wrong:
    """Blocks of another size; None where both sizes hold all tokens."""
    name, tensor = {"queries": ("query_block", "q"), "keys": ("key_block", "k")}[of]

    def wrong(op, inputs, params):
        tokens = inputs[tensor].shape[1]
        other = change(params[name], tokens)
        same = min(other, tokens) == min(params[name], tokens)
        return None if other < 1 or same else answer(op, inputs, {**params, name: other})

    return wrong


def _mean_of_whole_blocks(op, inputs, params):
    """The mean divides by the keys of all blocks, as if the last were complete."""
    J = inputs["k"].shape[1]
    filled = -(-J // params["key_block"]) * params["key_block"]
    if not params["smooth"] or filled == J:
        return None
    return _steps(inputs, params, smooth=lambda k: k - k.sum(axis=1, keepdims=True) / np.float32(filled))


def _keys_that_are_not_there(op, inputs, params):
    """The keys that the last block lacks are zeros: their scores of 0 count, their values are 0."""
    missing = -inputs["k"].shape[1] % params["key_block"]
    if not missing:
        return None
    fill = [(0, 0), (0, missing), (0, 0), (0, 0)]
    return _steps(inputs, params, keys=lambda k, scale, v: tuple(np.pad(t, fill) for t in (k, scale, v)))


def _last_block_left_out(op, inputs, params):
    kept = inputs["k"].shape[1] // params["key_block"] * params["key_block"]
    if kept in (0, inputs["k"].shape[1]):
        return None
    return _steps(inputs, params, keys=lambda k, scale, v: (k[:, :kept], scale[:, :kept], v[:, :kept]))


def _last_queries_left_out(op, inputs, params):
    kept = inputs["q"].shape[1] // params["query_block"] * params["query_block"]
    if kept in (0, inputs["q"].shape[1]):
        return None
    y = answer(op, inputs, params).copy()
    y[:, kept:] = 0
    return y


def _nan_of_zero_blocks(op, inputs, params):
    """0 / 0 where all queries of a block are 0."""
    scale = codes_of_blocks(inputs["q"].values(), params["query_block"])[1]
    return np.where(scale == 0, np.float32(np.nan), answer(op, inputs, params)) if not scale.all() else None


def _case(
    label: str, B: int, L: int, J: int, H: int, D: int, G=0, q: dict | None = None, k: dict | None = None, **params
):
    """Make a case of G heads of keys (0: H). q, k: fields of their recipes"""
    loud: dict[str, Any] = {"exponent": -14}
    inputs = {
        "q": Recipe((B, L, H, D), **(loud | (q or {}))),
        "k": Recipe((B, J, G or H, D), **(loud | (k or {}))),
        "v": Recipe((B, J, G or H, D)),
    }
    name = f"attention_int8/{label}-b{B}-l{L}-j{J}-h{H}-d{D}" + (f"-g{G}" if G else "")
    return Case(name, "attention_int8", inputs, params)


ATTENTION_INT8 = Operation(
    "attention_int8",
    "softmax(scale q.k) v with q and k rounded to int8, ties away from zero: query_block neighbouring queries, or "
    "key_block keys, of a head share the scale max |x| / 127. Where smooth, the keys' mean over all keys is "
    "subtracted first. H/G neighbouring heads share keys and values.",
    family="attention",
    inputs={"q": "[B, L, H, D]", "k": "[B, J, G, D]", "v": "[B, J, G, E]"},
    output="[B, L, H, E]",
    params={"scale": None, "query_block": 128, "key_block": 64, "smooth": True},
    run=_run,
    fits=lambda shapes, params: (
        shapes["q"][2] % shapes["k"][2] == 0 and min(params["query_block"], params["key_block"]) > 0
    ),
    bound=_bound,
    mutants=(
        Mutant("keys that the last block lacks count, with a score of 0", _keys_that_are_not_there),
        Mutant("keys of the last, incomplete block left out", _last_block_left_out),
        Mutant("queries of the last, incomplete block left out", _last_queries_left_out),
        Mutant("the keys' mean is not subtracted", _where_smooth(lambda k: k)),
        Mutant(
            "the mean over all heads is subtracted from the keys",
            _where_smooth(lambda k: k - k.mean(axis=(1, 2), keepdims=True)),
        ),
        Mutant(
            "each key's mean over its channels is subtracted, not the mean over the keys",
            _where_smooth(lambda k: k - k.mean(axis=3, keepdims=True)),
        ),
        Mutant("the keys' mean divides by the tokens of whole blocks", _mean_of_whole_blocks),
        Mutant("each block of queries has the scale of the block before", _wrong(q_codes=_block_before)),
        Mutant("each block of keys has the scale of the block before", _wrong(k_codes=_block_before)),
        Mutant("all heads share the scales of queries", _wrong(q_codes=_OF_ALL_HEADS)),
        *(
            Mutant(f"codes of query heads have the scale of {words}", _of_other_heads(which))
            for words, which in _OTHER_HEADS.items()
        ),
        Mutant("all heads share the scales of keys", _wrong(k_codes=_OF_ALL_HEADS)),
        *_other_blocks(),
        Mutant("scales of queries in float16", _wrong(q_codes=_half_scales)),
        Mutant("scales of keys in float16", _wrong(k_codes=_half_scales)),
        Mutant("queries not rounded", _wrong(q_codes=_not_rounded)),
        Mutant("keys not rounded", _wrong(k_codes=_not_rounded)),
        Mutant("queries and keys not rounded", _wrong(q_codes=_not_rounded, k_codes=_not_rounded)),
        Mutant("queries and keys rounded toward zero", _wrong(q_codes=_TOWARD_ZERO, k_codes=_TOWARD_ZERO)),
        Mutant("scales max |x| / 128, not / 127", _wrong(q_codes=_OF_128, k_codes=_OF_128)),
        Mutant(
            "sum of products saturated at 16 bits",
            _wrong(scores=lambda sums, scales: np.clip(sums, -32768, 32767) * scales),
        ),
        Mutant(
            "products of codes stored in float16",
            _wrong(scores=lambda sums, scales: sums.astype(np.float16).astype(np.float32) * scales),
        ),
        Mutant("powers of 2 for those of e", _scaled_by(np.log(2))),
        Mutant("the factor log2 e with powers of e", _scaled_by(1 / np.log(2))),
        Mutant("NaN where a block of queries is zero", _nan_of_zero_blocks),
        Mutant("scale missing", scale_by(0.0)),
        Mutant("scale 1/D", scale_by(-1.0)),
        Mutant("given scale ignored", lambda op, i, p: scale_by(-0.5)(op, i, p) if p["scale"] else None),
        Mutant("heads interleaved, not grouped", heads_interleaved),
        Mutant("only the first head of the keys", first_key_head),
        Mutant("keys and values exchanged", exchanged("k", "v")),
        Mutant("batch of v reads the first item", other_input("v", first_of_batch)),
    ),
    cases=(
        _case("self", 1, 160, 192, 2, 64),
        # As many words as CLIP has: one whole block of keys, and a part. No key outweighs all others.
        _case("words", 2, 130, 77, 2, 64, q={"exponent": -15}, k={"exponent": -15}),
        _case("few", 1, 40, 20, 3, 64),
        _case("grouped", 2, 33, 128, 6, 64, G=2, scale=0.2),
        _case("wide", 1, 64, 64, 2, 128),
        _case("outliers", 1, 33, 128, 2, 64, q={"data": "outliers"}),
        _case("biased", 1, 40, 128, 2, 64, k={"offset": 4.0}),
        _case("not-smooth", 1, 140, 100, 2, 64, smooth=False),
        # Scales of queries that float16 does not hold.
        _case("faint", 1, 40, 128, 2, 64, q={"exponent": -29}, k={"exponent": -1}),
        _case("short-blocks", 2, 45, 77, 2, 40, query_block=32, key_block=16),
        _case("zeros", 1, 16, 64, 1, 64, q={"data": "rows", "n": 2}, query_block=1),
    ),
)

OPERATIONS = (ATTENTION_INT8,)
