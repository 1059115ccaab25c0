"""What the components of language models share: arguments, constraints, and how hidden states are selected."""

import math
from collections.abc import Callable, Sequence

from refsd.models.flux2 import stacked
from refsd.module import Module
from refsd.networks.component import IDS, MASK, Argument
from refsd.networks.fits import Fit, exactly
from refsd.numerics.errors import BadInput

INPUT_IDS = Argument("N L", IDS, "token ids, begun and ended")
ATTENTION_MASK = Argument("N L", MASK, "0 where a token is padding and not to be seen", optional=True)


def vocabulary(m: Module) -> dict[str, Fit]:
    return {"V": exactly(m.shape("model.embed_tokens.weight")[0])}


def with_head_dim(m: Module) -> dict[str, Fit]:
    attention = m["model"]["layers"][0]["self_attn"]
    rows = math.gcd(attention.shape("q_proj.weight")[0], attention.shape("k_proj.weight")[0])
    even = Fit(rows, f"an even divisor of {rows}", lambda size: size % 2 == 0 and rows % size == 0)
    return vocabulary(m) | {"head_dim": even}


def selecting(network: Callable, usual: Sequence[int] = ()) -> Callable[..., dict]:
    """Return a language model's component: the hidden states that `context` selects. usual: as there"""
    return lambda m, *inputs, layers=(), **given: context(network(m, *inputs, **given), layers, usual)


def context(hidden_states, layers, usual=()) -> dict:
    """Select hidden states for a denoiser: those of `layers`, else the last two, and `usual` as context."""
    if layers:
        if not all(type(i) is int and i >= 0 for i in layers):
            raise BadInput(f"param layers is {str(layers)[:40]}, expected numbers of hidden states, from 0 on")
        return {"hidden_states": stacked(hidden_states, layers)}
    states = {"last_hidden_state": hidden_states[-1], "penultimate": hidden_states[-2]}
    deep_enough = usual and len(hidden_states) > max(usual)
    return states | ({"context": stacked(hidden_states, usual)} if deep_enough else {})
