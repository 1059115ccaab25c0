"""T5's encoder: transformer blocks with relative position biases and no other positions.

Raffel et al. 2019, section 2.1, in the form of version 1.1 (Shazeer 2020's gated GELU, no biases);
UMT5: Chung et al. 2023. Key names as in transformers, modeling_t5.py and modeling_umt5.py.
"""

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.module import Module, block


@block
def t5_encoder(m: Module, input_ids, attention_mask=None, max_distance=128, eps=1e-6):
    """Encode token ids.

    T5 has one table of position biases, in layer 0, for all layers; UMT5 has one per layer.

    input_ids:      [N, L], integers
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    max_distance:   tokens; all larger distances share a bucket
    eps:            of every norm
    -> hidden:      [N, L, D], after the final norm

    The attention output of an item that is all padding is zero.
    """
    x = m.embedding("shared", input_ids)
    m = m["encoder"]
    bias = None
    for i in range(m.count("block")):
        layers = m["block"][i]["layer"]
        if i == 0 or "0.SelfAttention.relative_attention_bias" in layers:
            bias = position_bias(layers["0.SelfAttention"], x.shape[1], max_distance)
            if attention_mask is not None:
                bias = bias + boolean_mask(np.asarray(attention_mask)[:, None, None] != 0, np.float64)
        x = t5_block(m["block"][i], x, bias, eps)
    return m.rms_norm_apart("final_layer_norm.weight", x, eps)


@block
def t5_block(m: Module, x, bias, eps=1e-6):
    """x [N, L, D], bias [N or 1, H, L, L] -> [N, L, D]"""
    return feed_forward(m["layer.1"], attention(m["layer.0"], x, bias, eps), eps)


@block
def attention(m: Module, x, bias, eps=1e-6):
    """x + attention(norm(x)). x [N, L, D], bias [N or 1, H, L, L] -> [N, L, D]"""
    return m.add(x, self_attention(m["SelfAttention"], m.rms_norm_apart("layer_norm.weight", x, eps), bias))


@block
def self_attention(m: Module, x, bias):
    """Attention without the scale 1/sqrt(head_dim). x [N, L, D], bias [N or 1, H, L, L] -> [N, L, D]"""
    N, L, _ = x.shape
    q, k, v = (m.linear(name, x).reshape(N, L, bias.shape[1], -1) for name in ("q", "k", "v"))
    return m.linear("o", m.attention(q, k, v, scale=1.0, mask=bias).reshape(N, L, -1))


@block
def feed_forward(m: Module, x, eps=1e-6):
    """x + gated MLP(norm(x)). [N, L, D] -> [N, L, D]"""
    return m.add(x, gated_gelu(m["DenseReluDense"], m.rms_norm_apart("layer_norm.weight", x, eps)))


@block
def gated_gelu(m: Module, x):
    """Gated MLP with the tanh approximation of GELU. [N, L, D] -> [N, L, D]"""
    return m.linear("wo", m.multiply(m.gelu_tanh(m.linear("wi_0", x)), m.linear("wi_1", x)))


def position_bias(m: Module, L, max_distance):
    """Look up each head's bias for the score of query l and key j. -> [1, H, L, L], float64"""
    num_buckets = m.shape("relative_attention_bias.weight")[0]
    ids = relative_position_bucket(np.arange(L) - np.arange(L)[:, None], num_buckets, max_distance)
    return m.embedding("relative_attention_bias", ids).astype(np.float64).transpose(2, 0, 1)[None]


def relative_position_bucket(relative_position, num_buckets, max_distance):
    """Return the bucket of each relative position j - l.

    The second half of the buckets is for keys after the query (j > l). In each half, the first e are for the
    distances d = 0, 1, ..., e - 1; the other n cover growing ranges, the last one all larger distances:

        bucket = e + min(floor(n log(d / e) / log(max_distance / e)), n - 1),  e + n = num_buckets / 2

    relative_position: [...], integers
    -> bucket:         [...], integers

    Computed in integers, d^n e^k >= max_distance^k e^n for each k, so that no rounded logarithm changes a bucket.
    Source: Raffel et al. 2019, section 2.1; mesh_tensorflow transformer_layers.py, _relative_position_bucket.
    """
    half = num_buckets // 2
    e = half // 2
    n = half - e
    distance = np.abs(relative_position)
    of_distance = np.arange(distance.max(initial=0) + 1)
    for d in range(e, len(of_distance)):
        of_distance[d] = e + sum(d**n * e**k >= max_distance**k * e**n for k in range(1, n))
    return of_distance[distance] + half * (relative_position > 0)
