"""Norms, gates, positions, resampling and layout in float64 against torch's, diffusers' and transformers' own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers.models.embeddings import (
    PatchEmbed,
    apply_rotary_emb,
    get_1d_rotary_pos_embed,
    get_2d_sincos_pos_embed,
    get_timestep_embedding,
)
from diffusers.models.normalization import AdaLayerNormContinuous
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_flux2 import Flux2PosEmbed, Flux2SwiGLU
from diffusers.models.transformers.transformer_z_image import RopeEmbedder, ZImageTransformer2DModel
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.pipelines.flux2.pipeline_flux2 import Flux2Pipeline
from float64_peers import float64_throughout
from PIL import Image
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from refsd.kernels import interpolate, pad, patchify, pixel_shuffle, pool, relu, rope, swiglu
from refsd.kernels.batch_norm import batch_norm
from refsd.kernels.group_norm_silu import group_norm_silu
from refsd.kernels.l2_norm import l2_norm
from refsd.kernels.modulate import adaptive_layer_norm, gated_add, modulate
from refsd.kernels.resample import resize_nearest, resize_nearest_exact
from refsd.kernels.rms_norm import rms_norm
from refsd.kernels.sigmoid import sigmoid
from refsd.kernels.sincos_positions import crop_positions, sincos_positions
from refsd.kernels.tanh import tanh
from refsd.kernels.timestep_embedding import timestep_embedding, timestep_embedding_sin_first

pytestmark = pytest.mark.peer


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def t(*arrays):
    return tuple(torch.from_numpy(a) for a in arrays)


def agrees(y, peer, bound=1e-14):
    peer = peer.numpy() if isinstance(peer, torch.Tensor) else peer
    assert y.shape == peer.shape
    assert np.linalg.norm(y - peer) <= bound * np.linalg.norm(peer)


def test_norms():
    x, weight, bias = normal(2, 12, 5, 7) * 3 + 1, normal(12, seed=1), normal(12, seed=2)
    var = normal(12, seed=3) ** 2
    agrees(group_norm_silu(x, weight, bias, 4, 1e-5), F.silu(F.group_norm(*t(x), 4, *t(weight, bias), 1e-5)))
    agrees(batch_norm(x, bias, var, 1e-4), F.batch_norm(*t(x, bias, var), eps=1e-4))
    rows = normal(33, 77) * 3 + 1
    agrees(rms_norm(rows, None, 1e-6), F.rms_norm(*t(rows), (77,), None, 1e-6))
    agrees(l2_norm(rows, 1e-12), F.normalize(*t(rows)))
    agrees(l2_norm(rows * 1e-8, 1e-3), F.normalize(*t(rows * 1e-8), eps=1e-3))


def test_modulation():
    x, h, shift, scale = normal(2, 5, 16), normal(2, 5, 16, seed=1), normal(2, 16, seed=2), normal(2, 16, seed=3)
    a, b, s, c = t(x, h, shift, scale)
    agrees(modulate(x, shift, scale), a * (1 + c[:, None]) + s[:, None])
    agrees(gated_add(x, h, np.tanh(scale)), a + c[:, None].tanh() * b)
    layer = AdaLayerNormContinuous(16, 16, elementwise_affine=False, eps=1e-6).double()
    layer.linear.weight.data, layer.linear.bias.data = torch.zeros(32, 16).double(), torch.cat([c[0], s[0]])
    with torch.no_grad():
        agrees(adaptive_layer_norm(x[:1], shift[:1], scale[:1], 1e-6), layer(a[:1], c[:1]))


@pytest.mark.parametrize(
    ("mine", "peer"),
    [
        (sigmoid, torch.sigmoid),
        (tanh, torch.tanh),
        (relu.relu, F.relu),
        (lambda x: relu.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    ],
    ids=["sigmoid", "tanh", "relu", "leaky_relu"],
)
def test_activations(mine, peer):
    x = 4 * normal(33, 77)
    agrees(mine(x), peer(torch.from_numpy(x)))


def test_gates():
    x = 4 * normal(33, 154)
    agrees(swiglu.swiglu(x), Flux2SwiGLU()(*t(x)))
    first, second = np.split(x, 2, axis=1)
    first, second = np.ascontiguousarray(first), np.ascontiguousarray(second)
    agrees(swiglu.swiglu_second_gates(x), torch.from_numpy(first) * F.silu(torch.from_numpy(second)))


def test_gpt_oss():
    """Its weights hold gate and value in turns."""
    gate, value = 9 * normal(5, 20), 9 * normal(5, 20, seed=1)

    class Constants:
        alpha, limit = 1.702, 7.0

    both = torch.from_numpy(np.stack([gate, value], axis=-1).reshape(5, 40))
    agrees(swiglu.swiglu_oai(gate, value, 1.702, 7.0), GptOssExperts._apply_gate(Constants(), both))


def _flux_ids(H, W, axes=3):
    ids = np.zeros((H * W, axes))
    ids[:, 1], ids[:, 2] = np.divmod(np.arange(H * W), W)
    return ids


def _turned_complex(x, freqs):
    """Z-Image's apply_rotary_emb."""
    pairs = torch.view_as_complex(torch.from_numpy(x).reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs[None, :, None]).flatten(3)


def test_rope_of_flux():
    x, ids = normal(1, 20, 3, 128), _flux_ids(4, 5)
    with float64_throughout():
        freqs = FluxPosEmbed(10000, [16, 56, 56])(torch.from_numpy(ids))
        peer = apply_rotary_emb(torch.from_numpy(x), freqs, sequence_dim=1)
    agrees(rope.apply_rope(x, rope.rope_angles(ids[None], (16, 56, 56), 1e4)), peer)


def test_rope_of_flux2():
    x, ids = normal(1, 20, 3, 128), _flux_ids(4, 5, 4)
    ids[:, 3] = np.arange(20)
    with float64_throughout():
        freqs = Flux2PosEmbed(2000, [32, 32, 32, 32])(torch.from_numpy(ids))
        peer = apply_rotary_emb(torch.from_numpy(x), freqs, sequence_dim=1)
    agrees(rope.apply_rope(x, rope.rope_angles(ids[None], (32,) * 4, 2000.0)), peer)


def test_rope_of_z_image():
    x, ids = normal(1, 20, 3, 128), _flux_ids(4, 5).astype(np.int64)
    ids[:, 0] = 33
    with float64_throughout():
        freqs = RopeEmbedder(256.0, [32, 48, 48], [64, 64, 64])(torch.from_numpy(ids))
        peer = _turned_complex(x, freqs)
    agrees(rope.apply_rope(x, rope.rope_angles(ids[None], (32, 48, 48), 256.0)), peer)


def test_rope_of_qwen3():
    """The peer's frequencies are float32, made before float64_throughout could lift them: they are made anew."""
    x = normal(1, 20, 3, 128)
    config = qwen3.Qwen3Config(head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    with float64_throughout():
        embed = qwen3.Qwen3RotaryEmbedding(config).double()
        embed.inv_freq = 1e6 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
        cos, sin = embed(torch.from_numpy(x), torch.arange(20)[None])
        peer, _ = qwen3.apply_rotary_pos_emb(*t(x, x), cos, sin, unsqueeze_dim=2)
    angle = rope.rope_angles(np.arange(20).reshape(1, 20, 1), (128,), 1e6)
    agrees(rope.apply_rope_halves(x, angle), peer, 1e-14)


def test_float32_angles_are_what_float32_makes_of_them():
    """torch's float32 table takes other roundings; both are some 1e-5 off at position 127."""
    ids = np.arange(128.0)
    exact = rope.rope_angles(ids[None, :, None], (56,), 1e4)
    cos, _ = get_1d_rotary_pos_embed(56, torch.from_numpy(ids).float(), freqs_dtype=torch.float32, use_real=True)
    theirs = np.abs(cos.numpy()[:, ::2] - np.cos(exact[0])).max()
    mine = np.abs(np.cos(rope.rope_angles_float32(ids[None, :, None], (56,), 1e4)) - np.cos(exact)).max()
    assert 1e-7 < theirs < 3e-5 and 1e-7 < mine < 3e-5


@pytest.mark.parametrize("size", [4, 7])
def test_positions_of_sd3(size):
    with float64_throughout():
        peer = get_2d_sincos_pos_embed(24, size, base_size=3, interpolation_scale=2.0, output_type="pt")
    at = np.arange(size) / (size / 3) / 2.0
    agrees(sincos_positions(24, at, at), peer)
    layer = PatchEmbed(14, 14, 2, 3, 24, pos_embed_max_size=size)
    with torch.no_grad():
        layer.pos_embed[:] = torch.from_numpy(normal(1, size * size, 24))
    table = layer.pos_embed[0].numpy()
    for height, width in ((4, 3), (2, 4), (1, 2)):
        np.testing.assert_array_equal(
            crop_positions(table, height, width), layer.cropped_pos_embed(2 * height, 2 * width)[0]
        )


@pytest.mark.parametrize(("freq_shift", "scale", "dim"), [(0, 1, 320), (1, 1, 32), (0, 1000, 33), (1, 0.5, 256)])
def test_timestep_embedding(freq_shift, scale, dim):
    steps = np.array([0.0, 0.5, 1.0, 999.0])
    for cos_first, mine in ((True, timestep_embedding), (False, timestep_embedding_sin_first)):
        with float64_throughout():
            peer = get_timestep_embedding(
                *t(steps), dim, flip_sin_to_cos=cos_first, downscale_freq_shift=freq_shift, scale=scale
            )
        agrees(mine(steps, dim, freq_shift=freq_shift, scale=scale), peer, 1e-12)


SIZES = [((5, 7), (13, 11)), ((12, 9), (5, 7)), ((4, 6), (8, 12)), ((20, 3), (1, 1)), ((1, 5), (6, 2))]


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("how", ["", "_corners", "_antialias"])
def test_interpolation(kind, how, old, new):
    x = normal(2, 3, *old)
    peer = F.interpolate(*t(x), size=new, mode=kind, align_corners=how == "_corners", antialias=how == "_antialias")
    agrees(getattr(interpolate, f"resize_{kind}{how}")(x, *new), peer)


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_nearest(old, new):
    x = normal(2, 3, *old)
    agrees(resize_nearest(x, *new), F.interpolate(*t(x), size=new, mode="nearest"), 0)
    agrees(resize_nearest_exact(x, *new), F.interpolate(*t(x), size=new, mode="nearest-exact"), 0)


def test_nearest_is_exact_where_a_float_quotient_is_not():
    """46 pixels from 14: pixel 23 stands at 7, which 23 times float32(14 / 46) does not reach."""
    x = np.arange(14.0).reshape(1, 1, 1, 14)
    peer = F.interpolate(*t(x), size=(1, 46), mode="nearest").numpy()
    assert resize_nearest(x, 1, 46)[0, 0, 0, 23] == 7 and peer[0, 0, 0, 23] == 6


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_pillow_antialias(kind):
    """Pillow resizes a float32 picture with the same filters."""
    x = normal(1, 1, 20, 14).astype(np.float32)
    mode = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[kind]
    peer = np.asarray(Image.fromarray(x[0, 0]).resize((5, 7), mode))
    agrees(getattr(interpolate, f"resize_{kind}_antialias")(x, 7, 5)[0, 0], peer, 1e-6)


@pytest.mark.parametrize(
    ("window", "stride", "border"), [((2, 3), (2, 3), (0, 0)), ((3, 5), (2, 1), (1, 2)), ((4, 4), (1, 3), (2, 2))]
)
def test_pooling(window, stride, border):
    x = normal(2, 3, 9, 12) - 5
    agrees(pool.max_pool2d(x, window, stride, border), F.max_pool2d(*t(x), window, stride, border), 0)
    agrees(pool.avg_pool2d(x, window, stride, border), F.avg_pool2d(*t(x), window, stride, border))
    peer = F.avg_pool2d(*t(x), window, stride, border, count_include_pad=False)
    agrees(pool.avg_pool2d_inside(x, window, stride, border), peer)


def test_borders_and_rolls():
    x = normal(2, 3, 5, 6)
    modes = {"zero": "constant", "replicate": "replicate", "reflect": "reflect", "circular": "circular"}
    for mine, peer in modes.items():
        y = getattr(pad, f"pad_{mine}")(x, (2, 1, 0, 3))
        agrees(y, F.pad(*t(x), (0, 3, 2, 1), mode=peer), 0)
    agrees(pad.roll(x, 2, -1), torch.roll(*t(x), (2, -1), (2, 3)), 0)


def test_pixels_and_tokens():
    x = normal(2, 4, 6, 8)
    agrees(pixel_shuffle.pixel_unshuffle(x, 2), F.pixel_unshuffle(*t(x), 2), 0)
    agrees(pixel_shuffle.pixel_shuffle(x, 2), F.pixel_shuffle(*t(x), 2), 0)
    agrees(pixel_shuffle.pixel_unshuffle(x, 2), Flux2Pipeline._patchify_latents(*t(x)), 0)
    agrees(pixel_shuffle.pixel_shuffle(x, 2), Flux2Pipeline._unpatchify_latents(*t(x)), 0)
    agrees(patchify.patchify(x, 2), FluxPipeline._pack_latents(*t(x), 2, 4, 6, 8), 0)
    tokens = np.ascontiguousarray(patchify.patchify(x, 2))
    agrees(patchify.unpatchify(tokens, 2, 3), FluxPipeline._unpack_latents(*t(tokens), 48, 64, 8), 0)
    # SD3's last line: nhwpqc -> nchpwq
    last = normal(2, 12, 16)
    peer = torch.einsum("nhwpqc->nchpwq", torch.from_numpy(last).reshape(2, 3, 4, 2, 2, 4)).reshape(2, 4, 6, 8)
    agrees(patchify.unpatchify_channels_last(last, 2, 3), peer, 0)


def test_tokens_of_z_image():
    """Its patchify pads to 32 tokens; the first of them are the picture."""
    x = normal(4, 1, 6, 8)
    tokens, *_ = ZImageTransformer2DModel._patchify_image(None, torch.from_numpy(x), 2, 1)
    agrees(patchify.patchify_channels_last(x[None, :, 0], 2)[0], tokens, 0)
