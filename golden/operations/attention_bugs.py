"""Known bugs of attention: masks, scales, heads, blocks of keys."""

from collections.abc import Callable, Iterator

import numpy as np

from refsd.golden.mutations import Wrong, answer, first_of_batch, other_input, to_float16, without
from refsd.golden.operation import Mutant
from refsd.golden.operations.softmax import NO_MAXIMUM, TAILS, negated_where_finite
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored


def scale_by(power: float) -> Wrong:
    def wrong(op, inputs, params):
        return answer(op, inputs, {**params, "scale": inputs["q"].shape[-1] ** power})

    return wrong


def causal_with(change: Callable[[int, int], int]) -> Wrong:
    """Replace the diagonal by a function of it and of J - L."""

    def wrong(op, inputs, params):
        if not params["causal"]:
            return None
        later = inputs["k"].shape[1] - inputs["q"].shape[1]
        return answer(op, inputs, {**params, "diagonal": change(params["diagonal"], later)})

    return wrong


def heads_interleaved(op, inputs, params):
    """Head h reads keys and values h mod G, where it should read h // (H/G)."""
    H, G = inputs["q"].shape[2], inputs["k"].shape[2]
    if G in (1, H):
        return None
    each = {name: stored(inputs[name].values()[:, :, np.arange(H) % G]) for name in ("k", "v")}
    return answer(op, {**inputs, **each}, params)


def first_key_head(op, inputs, params):
    """Every head reads the first head's keys and values."""
    if inputs["k"].shape[2] == 1:
        return None
    first = {name: stored(inputs[name].values()[:, :, :1].copy()) for name in ("k", "v")}
    return answer(op, {**inputs, **first}, params)


def sink_with_value(op, inputs, params):
    """The sink's share of the softmax goes to the last value, where it should go nowhere."""
    if "sinks" not in inputs:
        return None
    v = inputs["v"].values()
    seen = answer(op, {**inputs, "v": stored(np.ones_like(v))}, params)
    last = np.repeat(v[:, -1:], inputs["q"].shape[2] // v.shape[2], axis=2)
    return answer(op, inputs, params) + (1 - seen) * last


def scaled_too(name: str) -> Wrong:
    """Multiply the mask or the sinks by the scale, as if they were added before scaling."""

    def wrong(op, inputs, params):
        if name not in inputs:
            return None
        scale = params["scale"] or inputs["q"].shape[-1] ** -0.5
        return answer(op, {**inputs, name: stored(inputs[name].values() * np.float32(scale))}, params)

    return wrong


def softmax_by(weights: Callable[..., np.ndarray | None]) -> Wrong:
    """Compute the softmax by hand. weights: scores [B, H, L, J], the mask or None -> weights; None: right"""

    def wrong(op, inputs, params):
        if "sinks" in inputs or params.get("causal"):
            return None
        q, k, v = (inputs[name].values().astype(np.float32) for name in "qkv")
        k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        scale = np.float32(params["scale"] or q.shape[-1] ** -0.5)
        with np.errstate(over="ignore", invalid="ignore"):
            s = np.einsum("blhd,bjhd->bhlj", q, k) * scale
            p = weights(s, inputs["mask"].values() if "mask" in inputs else None)
            return None if p is None else np.einsum("bhlj,bjhe->blhe", p, v)

    return wrong


def shares(e: np.ndarray) -> np.ndarray:
    return e / e.sum(axis=-1, keepdims=True)


def beyond_float16(s: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
    """Scores are stored in float16, where those beyond 65504 are infinite."""
    small = to_float16(s)
    lost = mask is None and not np.isfinite(small).all()
    return shares(np.exp(small - small.max(axis=-1, keepdims=True))) if lost else None


def without_maximum(s: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The exponentials of the scores themselves, in float32: the largest are infinite, or all of a row are 0."""
    s = s if mask is None else s + mask.astype(np.float32)
    return np.where(np.isneginf(s).all(axis=-1, keepdims=True), np.float32(0), shares(np.exp(s)))


def divided_at_the_end(op, inputs, params):
    """Exponentials without a maximum, added up beside their products with v; 0 where the sum is."""
    added: list[np.ndarray] = []

    def weights(s, mask):
        added.append(np.exp(s if mask is None else s + mask.astype(np.float32)))
        return added[0]

    y = softmax_by(weights)(op, inputs, params)
    if y is None:
        return None
    total = np.moveaxis(added[0].sum(axis=-1, keepdims=True), 1, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, y / total, np.float32(0))


def masked_afterwards(change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Wrong:
    """Apply the mask to the softmax of all scores. change: its weights [B, H, L, J], the mask -> weights"""

    def weights(s, mask):
        return None if mask is None else change(shares(np.exp(s - s.max(axis=-1, keepdims=True))), mask)

    return softmax_by(weights)


def maximum_from(start: float) -> Wrong:
    """Search the maximum of the products q.k from `start` on: zeros for a query whose products are all below."""

    def wrong(op, inputs, params):
        q, k = (inputs[name].values().astype(np.float32) for name in "qk")
        products = np.einsum("blhd,bjhd->blhj", q, np.repeat(k, q.shape[2] // k.shape[2], axis=2))
        below = products.max(axis=-1, keepdims=True) < start
        return np.where(below, np.float32(0), answer(op, inputs, params)) if below.any() else None

    return wrong


def nan_where_nothing_is_seen(op, inputs, params):
    """A query that sees no key gives NaN, by exp(-inf + inf) or 0 / 0."""
    y = answer(op, inputs, params)
    unseen = (y == 0).all(axis=-1, keepdims=True)
    return np.where(unseen, np.float32(np.nan), y) if unseen.any() else None


def nan_where_any_key_is_hidden(op, inputs, params):
    """exp(-inf) is NaN, and with it the sum: a polynomial for 2^f multiplies -inf - floor(-inf)."""
    y = answer(op, inputs, params).copy()
    N, L, H, _ = y.shape
    hidden = np.zeros((N, L, H), bool)
    if "mask" in inputs:
        mask = np.broadcast_to(inputs["mask"].values(), (N, H, L, inputs["k"].shape[1]))
        hidden |= np.asarray(np.isneginf(mask).any(axis=-1)).swapaxes(1, 2)
    if params["causal"]:
        last_seen = np.arange(L) + params["diagonal"]
        hidden |= (last_seen < inputs["k"].shape[1] - 1)[:, None]
    y[hidden] = np.nan
    return y if hidden.any() else None


def nan_where_first_are_hidden(block: int) -> Wrong:
    """A query that sees none of the first `block` keys gives NaN, by exp(-inf + inf) of a running maximum."""

    def wrong(op, inputs, params):
        J = inputs["k"].shape[1]
        if "mask" not in inputs or block >= J:
            return None
        y = answer(op, inputs, params).copy()
        N, L, H, _ = y.shape
        mask = np.broadcast_to(inputs["mask"].values(), (N, H, L, J))[..., :block]
        hidden = np.all(np.isneginf(mask), axis=-1)
        y[hidden.swapaxes(1, 2)] = np.nan
        return y if hidden.any() else None

    return wrong


def mask_of_the_first_query(op, inputs, params):
    """A mask of keys alone is not repeated for all queries: after its first row come zeros."""
    if "mask" not in inputs or inputs["mask"].shape[-2] != 1:
        return None
    L = inputs["q"].shape[1]
    mask = inputs["mask"].values()
    wide = np.zeros((*mask.shape[:-2], L, mask.shape[-1]), mask.dtype)
    wide[..., :1, :] = mask
    return answer(op, {**inputs, "mask": stored(wide)}, params)


def heads_of_padded_groups(op, inputs, params):
    """Head h is written to h p // r, with p the next power of two above the r heads of a group."""
    y = answer(op, inputs, params)
    H = y.shape[2]
    r = H // inputs["k"].shape[2]
    p = 1 << (r - 1).bit_length()
    if p == r:
        return None
    wrong = np.zeros_like(y)
    for h in range(H):
        if h * p // r < H:
            wrong[:, :, h * p // r] = y[:, :, h]
    return wrong


def first_keys(of: Callable[[int], int]) -> Wrong:
    """See a function of J of the keys: the first ones."""

    def wrong(op, inputs, params):
        J = inputs["k"].shape[1]
        seen = of(J)
        if seen <= 0 or seen == J:
            return None
        fewer = {name: stored(np.ascontiguousarray(inputs[name].values()[:, :seen])) for name in ("k", "v")}
        if "mask" in inputs:
            fewer["mask"] = stored(np.ascontiguousarray(inputs["mask"].values()[..., :seen]))
        return answer(op, {**inputs, **fewer}, params)

    return wrong


def keys_of_whole_blocks() -> Iterator[Mutant[Wrong]]:
    for n in TAILS:
        yield Mutant(f"keys after the last whole block of {n} not seen", first_keys(lambda J, n=n: J // n * n))


def sum_without_tail(block: int) -> Wrong:
    """Leave the keys after the last whole block out of the softmax's sum, but not their values."""

    def wrong(op, inputs, params):
        J, v = inputs["k"].shape[1], inputs["v"].values()
        kept = J // block * block
        if kept in (0, J):
            return None
        tail = np.broadcast_to((np.arange(J) >= kept)[:, None, None], v.shape).astype(np.float32)
        exact = Arithmetic(FLOAT64)
        y, lost = (op.answer(exact, {**inputs, "v": of}, params) for of in (inputs["v"], stored(tail)))
        return (y / (1 - lost)).astype(np.float32)

    return wrong


def values_by_channel(v: np.ndarray) -> np.ndarray | None:
    """Read values [B, G, E, J] in memory as [B, J, G, E], without a transpose."""
    return np.ascontiguousarray(v.transpose(0, 2, 3, 1)).reshape(v.shape) if v.shape[1] > 1 else None


def other_heads(change: Callable[[int], int]) -> Wrong:
    """Cut the same channels into another number of heads."""

    def wrong(op, inputs, params):
        H, D = inputs["q"].shape[2:]
        heads = change(H)
        same = {inputs[name].shape[2] for name in ("q", "k", "v")} == {H} and inputs["v"].shape[3] == D
        if not same or heads in (0, H) or H * D % heads or inputs.keys() - {"q", "k", "v", "mask"}:
            return None
        cut = {n: inputs[n].values() for n in ("q", "k", "v")}
        cut = {n: stored(np.ascontiguousarray(x.reshape(*x.shape[:2], heads, -1))) for n, x in cut.items()}
        return answer(op, {**inputs, **cut}, params).reshape(*inputs["q"].shape)

    return wrong


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """Read [B, L, H, D] as if it were [B, H, L, D]."""
    B, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(B, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def transposed(mask: np.ndarray) -> np.ndarray | None:
    return mask.swapaxes(-1, -2) if mask.ndim > 1 and mask.shape[-1] == mask.shape[-2] > 1 else None


def exchanged(a: str, b: str) -> Wrong:
    def wrong(op, inputs, params):
        if inputs[a].shape != inputs[b].shape:
            return None
        return answer(op, {**inputs, a: inputs[b], b: inputs[a]}, params)

    return wrong


def tokens_for_heads(x: np.ndarray) -> np.ndarray | None:
    """Read [B, L, H, D] as [B, H, L, D] where L is H."""
    return x.swapaxes(1, 2) if x.shape[1] == x.shape[2] > 1 else None


def over_the_heads(op, inputs, params):
    """Read q, k and v [B, L, H, D] as [B, H, L, D]: each token's heads attend to each other."""
    if len({inputs[name].shape[1:3] for name in "qkv"}) > 1 or inputs.keys() - set("qkv"):
        return None
    turned = {name: stored(np.ascontiguousarray(inputs[name].values().swapaxes(1, 2))) for name in "qkv"}
    return answer(op, turned, params).swapaxes(1, 2)


def hiding_nothing(mask: np.ndarray) -> np.ndarray | None:
    """Add 0 for -inf; None where this leaves no mask at all."""
    seen = np.where(np.isneginf(mask), 0, mask)
    return seen if seen.any() else None


def inverted(empty: str) -> Wrong:
    """Hide the keys that the mask shows, show those that it hides. empty: what a query gets that sees none then"""

    def wrong(op, inputs, params):
        mask = inputs["mask"].values() if "mask" in inputs else np.zeros(1)
        hidden = np.isneginf(mask)
        if not hidden.any() or (empty != "zeros" and hidden.any(axis=-1).all()):
            return None
        shown = np.where(hidden, 0, -1e30 if empty == "all" else -np.inf).astype(np.float32)
        turned = {**inputs, "mask": stored(shown)}
        return nan_where_nothing_is_seen(op, turned, params) if empty == "NaN" else answer(op, turned, params)

    return wrong


def but_for_its_inf(mask):
    return negated_where_finite(mask) if np.isinf(mask).any() else None


ATTENTION_BUGS = (
    Mutant("scale missing", scale_by(0.0)),
    Mutant("scale 1/D", scale_by(-1.0)),
    Mutant("each key has the same weight", lambda op, i, p: answer(op, i, {**p, "scale": 1e-30})),
    Mutant("given scale ignored", lambda op, i, p: scale_by(-0.5)(op, i, p) if p["scale"] else None),
    Mutant("mask ignored", without("mask")),
    Mutant("hidden keys are seen: -inf in the mask adds nothing", other_input("mask", hiding_nothing)),
    Mutant("mask scaled too", scaled_too("mask")),
    Mutant("mask transposed", other_input("mask", transposed)),
    Mutant("mask subtracted", other_input("mask", np.negative)),
    Mutant("mask subtracted, but for its -inf", other_input("mask", but_for_its_inf)),
    Mutant("mask inverted: the hidden keys alone are seen", inverted("zeros")),
    Mutant("mask inverted, NaN where it hid none", inverted("NaN")),
    Mutant("mask inverted, by -1e30: all keys are seen where it hid none", inverted("all")),
    Mutant("mask added after the softmax", masked_afterwards(np.add)),
    Mutant(
        "mask applied after the softmax, whose sum has all keys",
        masked_afterwards(lambda p, m: p * np.exp(m)),
    ),
    Mutant("-inf as a large negative number", other_input("mask", lambda m: np.maximum(m, -1e4))),
    Mutant(NO_MAXIMUM, softmax_by(without_maximum)),
    Mutant("scores in float16: infinite beyond 65504", softmax_by(beyond_float16)),
    Mutant("the maximum is sought from -50000 on, not from -inf", maximum_from(-5e4)),
    Mutant("the scores' maximum is not subtracted, the sums are divided at the end", divided_at_the_end),
    Mutant("NaN where nothing is seen", nan_where_nothing_is_seen),
    Mutant("exp(-inf) is NaN, and with it all that sees a hidden key", nan_where_any_key_is_hidden),
    Mutant("future not hidden", lambda op, i, p: answer(op, i, {**p, "causal": False}) if p["causal"] else None),
    Mutant("one future key seen", causal_with(lambda diagonal, later: diagonal + 1)),
    Mutant("causal from the other corner", causal_with(lambda diagonal, later: later - diagonal)),
    Mutant("heads interleaved, not grouped", heads_interleaved),
    Mutant("only the first head of the keys", first_key_head),
    Mutant("sinks ignored", without("sinks")),
    Mutant("sinks scaled too", scaled_too("sinks")),
    Mutant("the sink has a value", sink_with_value),
    Mutant("keys and values exchanged", exchanged("k", "v")),
    Mutant("heads and tokens of k mixed", other_input("k", heads_as_tokens)),
    Mutant("batch of v reads the first item", other_input("v", first_of_batch)),
    Mutant("q silently float16", other_input("q", to_float16)),
    Mutant("mask of keys for the first query alone", mask_of_the_first_query),
    *(Mutant(f"NaN where the first {n} keys are hidden", nan_where_first_are_hidden(n)) for n in (8, 16, 32, 64)),
    Mutant("heads written as if the group's ratio were a power of two", heads_of_padded_groups),
    *(Mutant(f"the last {n} keys not seen", first_keys(lambda J, n=n: J - n)) for n in (1, 2, 3)),
    *keys_of_whole_blocks(),
    *(Mutant(f"the softmax's sum without its tail after whole blocks of {n}", sum_without_tail(n)) for n in TAILS),
    Mutant("v not transposed: its channels read as tokens", other_input("v", values_by_channel)),
    *(Mutant(f"tokens and heads of {name} exchanged", other_input(name, tokens_for_heads)) for name in "qkv"),
    Mutant("heads attend to each other, in each token, not tokens in each head", over_the_heads),
    Mutant("k not transposed: its channels read as tokens", other_input("k", values_by_channel)),
    Mutant("twice as many heads", other_heads(lambda heads: 2 * heads)),
    Mutant("half as many heads", other_heads(lambda heads: heads // 2)),
    Mutant("8 heads", other_heads(lambda heads: 8)),
    Mutant("a single head", other_heads(lambda heads: 1)),
)
