"""Chroma-Radiance in float64: diffusers' Chroma between a first and a last layer of plain torch.

The original itself answered for the fixture (tests/fixtures/record_radiance.py). Here the masks differ between the
items of a batch, which it cannot, and the fields are written anew: one vector of parameters a patch, by einsum.
"""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of, redraw
from test_models_chroma import peer_chroma
from test_models_flux_whole import E, weights_of
from torch import nn
from torch.nn import functional as F

from refsd.models.chroma import seen
from refsd.models.chroma.network import chroma_keymap
from refsd.models.chroma_radiance import chroma_radiance
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

# diffusers imports its own FluxPosEmbed from where it deprecates it.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning")]

# Heads, axes, patch, (channels, ratio, waves) of the fields, tokens, which of them are seen, (H, W), what is there.
CONFIGS = {
    "tiny": (2, (4, 6, 6), 4, (6, 4, 3), 7, (3, 6), (8, 20), ()),
    "real axes and fields": (1, (16, 56, 56), 16, (64, 4, 8), 5, (4, 1), (32, 16), ()),
    "linear": (3, (2, 4, 2), 2, (5, 3, 2), 9, (8, 2), (6, 10), ("linear",)),
    "x0, 32x32": (2, (4, 2, 2), 3, (4, 2, 5), 1, (1, 1), (6, 18), ("__x0__", "__32x32__")),
}


def shapes(D, side, field, linear):
    K, ratio, waves = field
    out = {"img_in_patch": (D, 3, side, side), "nerf_image_embedder.embedder.0": (K, 3 + waves * waves)}
    out |= {f"nerf_blocks.{i}.param_generator": (3 * K * K * ratio, D) for i in range(2)}
    out |= {"nerf_final_layer.linear": (3, K)} if linear else {"nerf_final_layer_conv.conv": (3, K, 3, 3)}
    last = "nerf_final_layer" if linear else "nerf_final_layer_conv"
    biases = {f"{name}.bias": shape[:1] for name, shape in out.items()}
    norms = {f"{name}.norm.scale": (K,) for name in ("nerf_blocks.0", "nerf_blocks.1", last)}
    return {f"{name}.weight": shape for name, shape in out.items()} | biases | norms


class Skip(nn.Module):
    """In the place of a layer that Radiance does not have."""

    def forward(self, x, *_):
        return x


def rms(x, scale):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def unit(matrix):
    return matrix / matrix.norm(dim=-2, keepdim=True)


def paint(w, x, tokens, P, field):
    """x [N, 3, H, W], tokens [N, L, D] -> [N, 3, H, W], and each block's [N, L, P * P, K]"""
    N, C, H, W = x.shape
    K, ratio, waves = field
    pixels = F.unfold(x, P, stride=P).reshape(N, C, P * P, -1).permute(0, 3, 2, 1)  # [N, L, P * P, C]
    place = torch.arange(P) / (P - 1)
    order = torch.arange(waves)
    cosine = torch.cos(torch.pi * place[:, None] * order)
    basis = torch.einsum("va,ub,ab->uvab", cosine, cosine, 1 / (1 + order[:, None] * order).double())
    basis = basis.reshape(1, 1, P * P, waves * waves).expand(N, pixels.shape[1], -1, -1)
    at = "nerf_image_embedder.embedder.0"
    h = F.linear(torch.cat([pixels, basis], -1), w[f"{at}.weight"], w[f"{at}.bias"])
    outs = []
    for i in range(2):
        at = f"nerf_blocks.{i}"
        parameters = F.linear(tokens, w[f"{at}.param_generator.weight"], w[f"{at}.param_generator.bias"])
        size = K * K * ratio
        gate, value = (parameters[..., j * size : (j + 1) * size].unflatten(-1, (K, -1)) for j in (0, 1))
        out = parameters[..., 2 * size :].unflatten(-1, (-1, K))
        n = rms(h, w[f"{at}.norm.scale"])
        gated = F.silu(torch.einsum("nlpk,nlkr->nlpr", n, unit(gate)))
        gated = gated * torch.einsum("nlpk,nlkr->nlpr", n, unit(value))
        h = h + torch.einsum("nlpr,nlrk->nlpk", gated, unit(out))
        outs.append(h)
    last = "nerf_final_layer" if "nerf_final_layer.norm.scale" in w else "nerf_final_layer_conv"
    h = rms(h, w[f"{last}.norm.scale"])
    h = F.fold(h.permute(0, 3, 2, 1).reshape(N, K * P * P, -1), (H, W), P, stride=P)
    if last == "nerf_final_layer":
        return F.conv2d(h, w[f"{last}.linear.weight"][:, :, None, None], w[f"{last}.linear.bias"]), outs
    return F.conv2d(h, w[f"{last}.conv.weight"], w[f"{last}.conv.bias"], padding=1), outs


@pytest.mark.parametrize("name", CONFIGS)
def test_radiance_and_every_block(name):
    heads, axes, side, field, J, lengths, (H, W), there = CONFIGS[name]
    D, P = heads * sum(axes), side * (1 + ("__32x32__" in there))
    ours = draw_weights(shapes(D, side, field, "linear" in there), seed=1)
    x, context, t = draw((2, 3, H, W), 2), draw((2, J, E), 3), np.array([0.98125, 0.0317])
    mask = seen(np.arange(J) < np.array(lengths)[:, None])
    L = H * W // P**2
    with float64_throughout():
        peer = peer_chroma(heads, axes)
        redraw(peer, 4)
        weights = weights_of(peer, chroma_keymap(2, 3, 2))
        peer.x_embedder = peer.norm_out = peer.proj_out = Skip()
        w = {name: torch.from_numpy(a) for name, a in ours.items()}
        given = torch.from_numpy(x)
        small = F.interpolate(given, scale_factor=side / P, mode="nearest")
        first = F.conv2d(small, w["img_in_patch.weight"], w["img_in_patch.bias"], stride=side)
        with outputs_of(peer) as theirs:
            tokens = peer(
                first.flatten(2).mT,
                torch.from_numpy(context),
                torch.from_numpy(t),
                torch.cartesian_prod(*(torch.arange(n) for n in (1, H // P, W // P))).double(),
                torch.zeros(J, 3),
                torch.from_numpy(np.pad(mask, ((0, 0), (0, L)), constant_values=True)),
            ).sample
        want, fields = paint(w, given, tokens, P, field)
        if "__x0__" in there:
            want = (given - want) / torch.from_numpy(t)[:, None, None, None]

    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(("img_in.", "final_layer."))}
    markers = {name: stored(np.zeros(0, np.float32)) for name in there if name.startswith("__")}
    m = Module(kept | {name: stored(a) for name, a in ours.items()} | markers, taps=Taps())
    got = chroma_radiance(m, x, t, context, mask, axes)
    assert distance(got, want) <= 1e-12
    for i in range(2):
        assert distance(m.taps[f"double_blocks.{i}.1"], theirs[f"transformer_blocks.{i}"]) <= 1e-12
        tap = m.taps[f"nerf_blocks.{i}"]
        assert distance(tap, fields[i].flatten(0, 1)) <= 1e-12
    for i in range(3):
        assert distance(m.taps[f"single_blocks.{i}"], theirs[f"single_transformer_blocks.{i}"]) <= 1e-12
