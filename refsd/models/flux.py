"""The two blocks of FLUX.1.

Key names, argument names and order of the streams as in black-forest-labs/flux, modules/layers.py.
"""

import numpy as np

from refsd.module import Module, block


@block
def double_stream_block(m: Module, img, txt, vec, angle, num_heads=24):
    """Picture and text, each with its own weights, attend to both.

    img:    [N, L, D]
    txt:    [N, J, D]
    vec:    [N, D], the conditioning
    angle:  [N, J + L, D / num_heads / 2], radians; text first
    -> img: [N, L, D]
       txt: [N, J, D]
    """
    img_attn, img_mlp = modulation(m["img_mod"], vec, 2)
    txt_attn, txt_mlp = modulation(m["txt_mod"], vec, 2)

    img_qkv = qkv(m["img_attn"], m.modulate(norm(m, img), *img_attn[:2]), num_heads)
    txt_qkv = qkv(m["txt_attn"], m.modulate(norm(m, txt), *txt_attn[:2]), num_heads)
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(txt_qkv, img_qkv, strict=True))
    y = rotary_attention(m, q, k, v, angle)
    txt_y, img_y = np.split(y, [txt.shape[1]], axis=1)

    img = img + img_attn[2][:, None] * m.linear("img_attn.proj", img_y)
    txt = txt + txt_attn[2][:, None] * m.linear("txt_attn.proj", txt_y)
    img = img + img_mlp[2][:, None] * mlp(m["img_mlp"], m.modulate(norm(m, img), *img_mlp[:2]))
    txt = txt + txt_mlp[2][:, None] * mlp(m["txt_mlp"], m.modulate(norm(m, txt), *txt_mlp[:2]))
    return img, txt


@block
def single_stream_block(m: Module, x, vec, angle, num_heads=24):
    """Attention and MLP side by side on text and picture together.

    x:     [N, L, D], text first
    vec:   [N, D]
    angle: [N, L, D / num_heads / 2], radians
    -> x:  [N, L, D]
    """
    N, L, D = x.shape
    ((shift, scale, gate),) = modulation(m["modulation"], vec, 1)
    h = m.linear("linear1", m.modulate(norm(m, x), shift, scale))
    qkv, hidden = np.split(h, [3 * D], axis=-1)
    q, k, v = qkv.reshape(N, L, 3, num_heads, -1).transpose(2, 0, 1, 3, 4)
    q, k = qk_norm(m["norm"], q, k)
    y = rotary_attention(m, q, k, v, angle)
    return x + gate[:, None] * m.linear("linear2", np.concatenate([y, m.gelu_tanh(hidden)], axis=-1))


def modulation(m: Module, vec, times):
    """[N, D] -> `times` triples (shift, scale, gate), each [N, D]"""
    out = np.split(m.linear("lin", m.silu(vec)), 3 * times, axis=-1)
    return [out[3 * i : 3 * i + 3] for i in range(times)]


def norm(m: Module, x):
    """LayerNorm without weights. [N, L, D] -> the same"""
    return m.layer_norm(None, x, eps=1e-6)


def qkv(m: Module, x, num_heads):
    """[N, L, D] -> q, k, v, each [N, L, H, D / H]; q and k normalised"""
    N, L, _ = x.shape
    q, k, v = m.linear("qkv", x).reshape(N, L, 3, num_heads, -1).transpose(2, 0, 1, 3, 4)
    return *qk_norm(m["norm"], q, k), v


def qk_norm(m: Module, q, k):
    """[N, L, H, D] each -> the same"""
    return m.rms_norm("query_norm.scale", q), m.rms_norm("key_norm.scale", k)


def rotary_attention(m: Module, q, k, v, angle):
    """[N, L, H, D] each, angle [N, L, D/2] -> [N, L, H*D]"""
    N, L, _, _ = q.shape
    return m.attention(m.rope(q, angle), m.rope(k, angle), v).reshape(N, L, -1)


@block
def mlp(m: Module, x):
    """[N, L, D] -> [N, L, D]"""
    return m.linear("2", m.gelu_tanh(m.linear("0", x)))
