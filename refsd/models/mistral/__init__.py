"""Mistral Small 3's and Ministral 3's language models as text encoders: the hidden states of every layer.

Jiang et al. 2023, without the sliding window; key names as in transformers, modeling_mistral.py
(MistralForCausalLM). Qwen3's layers with another epsilon and without its norms of queries and keys.
Ministral 3 (modeling_ministral3.py) has the same tensors; its rotary frequencies are YaRN's.
"""

import math

import numpy as np

from refsd.models.language_model import hidden_states
from refsd.module import Module, block

EPS = 1e-5


@block
def mistral(
    m: Module,
    input_ids,
    attention_mask=None,
    head_dim=128,
    theta=1e9,
    eps=EPS,
    factor=1.0,
    trained_length=16384,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=True,
    attention_factor=1.0,
    query_beta=0.0,
):
    """Encode token ids.

    input_ids:        [N, L], integers
    attention_mask:   [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    head_dim:         channels of a head; shapes do not reveal it
    theta:            base of the rotary frequencies
    eps:              of every norm
    factor, trained_length, beta_fast, beta_slow, truncate: of YaRN, see `stretch`; a factor of 1 stretches nothing
    attention_factor, query_beta: see `query_scale`
    -> hidden_states: [N, L, D] each: the embeddings, then the output of each layer, the last one's after the final
                      norm if there is one. FLUX.2 dev uses 10, 20 and 30; some files end there, without a norm.

    Positions count from the start of the row, padding included.
    """
    m = m["model"]
    x = m.embedding("embed_tokens", input_ids)
    place = np.arange(x.shape[1])
    angle = m.rope_angles(place[None, :, None], (head_dim,), theta)
    if factor != 1:
        angle = angle.astype(np.float64) * stretch(
            head_dim, theta, factor, trained_length, beta_fast, beta_slow, truncate
        )
    scale = query_scale(place, attention_factor, trained_length, query_beta)
    scale = None if (scale == 1).all() else scale
    return hidden_states(m, x, angle, attention_mask, eps, final_norm="norm" in m, scale=scale)


def stretch(head_dim, theta, factor, trained_length, beta_fast=32.0, beta_slow=1.0, truncate=True):
    """Return YaRN's factors of the rotary frequencies. -> [head_dim / 2], from 1 down to 1 / factor

    A pair of channels that turns more than beta_fast times in trained_length tokens keeps its frequency, one that
    turns less than beta_slow times is slowed by `factor`; between them it is a line in the pair's number.

    truncate: True to round the ends of the line outwards, to whole numbers

    Peng et al. 2023; transformers modeling_rope_utils.py, _compute_yarn_parameters.
    """
    low, high = (turning(turns, head_dim, theta, trained_length) for turns in (beta_fast, beta_slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # transformers widens an empty line by this much.
    width = high - low if high != low else 0.001
    slowed = np.clip((np.arange(head_dim // 2) - low) / width, 0, 1)
    return 1 - slowed + slowed / factor


def turning(turns, head_dim, theta, trained_length):
    """Return the number, not whole, of the pair of channels that turns so many times in trained_length tokens."""
    return head_dim * math.log(trained_length / (2 * math.pi * turns)) / (2 * math.log(theta))


def query_scale(place, attention_factor, trained_length, beta):
    """Return the factors of the queries by their place. [L] -> [L]

        attention_factor^2 (1 + beta log(1 + floor(place / trained_length)))

    YaRN multiplies queries and keys by the attention factor; here the queries have both.

    Source: transformers modeling_ministral3.py, get_llama_4_attn_scale.
    """
    return attention_factor**2 * (1 + beta * np.log1p(place // trained_length))
