"""Functions of IP-Adapter's page with bugs that a port may have."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import ip_adapter, unet
from refsd.models.ip_adapter import Prompt
from refsd.networks.bugs import changing, dropping, exchanging, replacing, with_arguments

_IMAGE, _CROSS, _PERCEIVER = ip_adapter.image_attention, unet.cross_attention, ip_adapter.perceiver_attention


def _one_softmax(m, x, prompt, num_heads):
    if prompt.image is None:
        return _CROSS(m, x, prompt, num_heads)
    N, L, D = x.shape
    q = m.linear("to_q", x).reshape(N, L, num_heads, -1)
    k = np.concatenate([m.linear("to_k", prompt.text), m.linear("to_k_ip", prompt.image)], axis=1)
    v = np.concatenate([m.linear("to_v", prompt.text), prompt.scale * m.linear("to_v_ip", prompt.image)], axis=1)
    k, v = (part.reshape(N, k.shape[1], num_heads, -1) for part in (k, v))
    return m.linear("to_out.0", m.attention(q, k, v).reshape(N, L, D))


def _read_as_text(m, x, prompt, num_heads):
    if prompt.image is None:
        return _CROSS(m, x, prompt, num_heads)
    return _CROSS(m, x, Prompt(np.concatenate([prompt.text, prompt.image], axis=1)), num_heads)


def _after_the_projection(m, x, prompt, num_heads):
    out = _CROSS(m, x, Prompt(prompt.text), num_heads)
    if prompt.image is None:
        return out
    q = m.linear("to_q", x).reshape(*x.shape[:2], num_heads, -1)
    return m.add(out, _IMAGE(m, q, prompt).reshape(x.shape))


def _channels_before_tokens(m, embeds):
    E = m.shape("norm.weight")[0]
    return m.layer_norm("norm", m.linear("proj", embeds).reshape(len(embeds), E, -1).swapaxes(1, 2))


def _norm_of_all(m, embeds):
    """The norm's statistics are those of all tokens together."""
    h = m.linear("proj", embeds)
    rows = m.layer_norm(None, h).reshape(len(h), -1, m.shape("norm.weight")[0])
    return m.add(m.multiply(rows, m.weight("norm.weight")), m.weight("norm.bias"))


def _image_alone(m, x, latents):
    """Latents attend to the image's states and not to themselves."""
    N, T, _ = latents.shape
    x, latents = m.layer_norm("norm1", x), m.layer_norm("norm2", latents)
    q = m.linear("to_q", latents).reshape(N, T, -1, ip_adapter.HEAD_DIM)
    k, v = (part.reshape(N, x.shape[1], *q.shape[2:]) for part in np.split(m.linear("to_kv", x), 2, axis=2))
    return m.linear("to_out", m.attention(q, k, v).reshape(N, T, -1))


_MIDDLE = tuple(
    (f"middle_block.1.transformer_blocks.0.attn2.{key}", f"output_blocks.3.1.transformer_blocks.0.attn2.{key}")
    for key in ("to_k_ip", "to_v_ip")
)
BUGS = (
    *replacing(
        unet,
        (
            "the IP-Adapter's scale is not read",
            "image_attention",
            with_arguments(_IMAGE, prompt=lambda prompt: prompt._replace(scale=1.0)),
        ),
        ("text and image share one softmax", "cross_attention", _one_softmax),
        ("the image is read by the text's keys and values", "cross_attention", _read_as_text),
        ("the image is added after the output's projection", "cross_attention", _after_the_projection),
    ),
    *replacing(
        ip_adapter,
        ("an image prompt's channels stand before its tokens", "projection", _channels_before_tokens),
        ("an image prompt's norm is over all tokens", "projection", _norm_of_all),
        ("the Resampler's latents do not attend to themselves", "perceiver_attention", _image_alone),
        (
            "the Resampler's layers add nothing to their input",
            "perceiver_attention",
            lambda m, x, latents: _PERCEIVER(m, x, latents) - latents,
        ),
    ),
    Mutant("the image prompt is not read", dropping("ip_tokens")),
    Mutant("the image prompt has four tokens", changing("ip_tokens", lambda tokens: tokens[:, :4])),
    Mutant("an image prompt is made without the class token", changing("penultimate", lambda x: x[:, 1:])),
    Mutant("the image's keys and values are swapped", exchanging(("to_k_ip", "to_v_ip"))),
    Mutant("an IP-Adapter's middle block stands before the decoder", exchanging(*_MIDDLE)),
)
