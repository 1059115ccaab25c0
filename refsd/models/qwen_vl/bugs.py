"""Known bugs of Qwen2.5-VL's and Qwen3-VL's positions."""

from functools import partial

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import qwen_vl
from refsd.module import Module
from refsd.networks.bugs import Change, changing, dropping, replacing, with_result

_SECTIONS = (qwen_vl, "in_turn", qwen_vl.interleaved), (qwen_vl, "interleaved", qwen_vl.in_turn)


def _to_the_last(sections):
    """Every third frequency is of the row, every third of the column, beyond their sections, too."""
    return np.arange(sum(sections)) % 3


_CHUNKS = 8, 16, 32
_ATTENTION = Module.attention
_ENCODE, _FEATURES, _PLACED = qwen_vl.encode, qwen_vl.features_in_places, qwen_vl.with_pictures
_added = partial(with_result, _FEATURES)


def _one_layer_late(x, places, deepstack):
    added = _FEATURES(x, places, deepstack)
    return (np.zeros_like(x), *added) if added else ()


def _one_layer_early(m, x, attention_mask, positions, final_norm, axis, theta, eps=qwen_vl.EPS, added=()):
    """Add the first features to the embeddings, as if DeepStack's layers counted from there."""
    x = m.add(x, added[0]) if added else x
    return _ENCODE(m, x, attention_mask, positions, final_norm, axis, theta, eps, added[1:])


def _one_token_late(added):
    return tuple(np.roll(features, 1, axis=1) for features in added)


def _all_at_once(added):
    return (sum(added[1:], added[0]),) if added else ()


def _pictures_not_placed(x, places, pictures):
    """Keep the embedding of the token that stands for a picture."""
    return x if x.any() else _PLACED(x, places, pictures)


def _again(n):
    """Count the features from the first again in each chunk of n tokens."""

    def placed(x, places, pictures):
        chunks = zip(*(np.split(t, range(n, x.shape[1], n), axis=1) for t in (x, places)), strict=True)
        return np.concatenate([_PLACED(y, own, pictures[: own.sum()]) for y, own in chunks], axis=1)

    return placed


def _seen_by_time():
    """A causal mask compares the times of positions: an image's patches, which have one, all see each other."""
    times = []

    def encode(m, x, attention_mask, positions, *more):
        times[:] = [] if positions is None else [np.asarray(positions)[..., 0]]
        try:
            return _ENCODE(m, x, attention_mask, positions, *more)
        finally:
            times.clear()

    def attention(m, q, k, v, mask=None, diagonal=None, **more):
        if not times:
            return _ATTENTION(m, q, k, v, mask=mask, diagonal=diagonal, **more)
        later = np.where(times[0][:, None] > times[0][:, :, None], -np.inf, 0.0)[:, None]
        return _ATTENTION(m, q, k, v, mask=later if mask is None else later + mask, **more)

    return (qwen_vl, "encode", encode), (Module, "attention", attention)


def _chunked(n):
    return changing("positions", lambda p: p[:, np.arange(p.shape[1]) % n])


BUGS = (
    Mutant("M-RoPE's sections are interleaved, or the reverse", Change(replaced=_SECTIONS)),
    Mutant("M-RoPE turns by each token's number alone", dropping("positions")),
    Mutant("M-RoPE turns by the time alone", changing("positions", lambda p: np.repeat(p[..., :1], 3, axis=-1))),
    Mutant("M-RoPE's row and column are swapped", changing("positions", lambda p: p[..., [0, 2, 1]])),
    Mutant("M-RoPE's positions are one token late", changing("positions", lambda p: np.roll(p, 1, axis=1))),
    Mutant("tokens see what is not later by the time of positions", Change(replaced=_seen_by_time())),
    *(Mutant(f"positions begin again with the first in each {n} tokens", _chunked(n)) for n in _CHUNKS),
    Mutant("DeepStack's features are not added", dropping("deepstack")),
    *replacing(
        qwen_vl,
        ("M-RoPE's interleaved sections do not end", "interleaved", _to_the_last),
        ("DeepStack's features are added one layer late", "features_in_places", _one_layer_late),
        ("DeepStack's features are added one layer early", "encode", _one_layer_early),
        ("DeepStack's features are added one token late", "features_in_places", _added(_one_token_late)),
        (
            "DeepStack's features are added in reverse order",
            "features_in_places",
            _added(lambda added: added[::-1]),
        ),
        ("DeepStack's features are all added after the first layer", "features_in_places", _added(_all_at_once)),
        ("DeepStack's last features are not added", "features_in_places", _added(lambda added: added[:-1])),
        *((f"features begin again with the first in each {n} tokens", "with_pictures", _again(n)) for n in _CHUNKS),
        ("a picture's places keep their token's embedding", "with_pictures", _pictures_not_placed),
    ),
)
