"""Qwen-Image's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.flux import pack, unpack
from refsd.models.qwen_image import qwen_image, qwen_image_layered
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CONTEXT = 40
# Latents of H != W, in tokens even and odd; texts of odd length, of one token, longer than the picture.
CONFIGS = {
    "real-head": {"heads": 2, "axes": (16, 56, 56), "hw": (6, 10), "tokens": 7},
    "odd": {"heads": 3, "axes": (4, 6, 6), "hw": (10, 14), "tokens": 37, "seen": (37, 20)},
    "holes": {"heads": 1, "axes": (2, 4, 8), "hw": (2, 6), "tokens": 9, "holes": True},
    "edit": {"heads": 2, "axes": (4, 6, 6), "hw": (4, 10), "tokens": 5, "references": ((6, 2),)},
    "edit-three": {
        "heads": 2,
        "axes": (16, 56, 56),
        "hw": (4, 6),
        "tokens": 5,
        "references": ((10, 4), (2, 2), (6, 14)),
        "zero_cond_t": True,
        "seen": (5, 3),
    },
    "edit-tiny": {"heads": 1, "axes": (4, 6, 6), "hw": (2, 2), "tokens": 3, "references": ((2, 2), (2, 4))},
}


def peer_qwen_image(heads, axes, layers=2, context=CONTEXT, channels=16, **more) -> QwenImageTransformer2DModel:
    return QwenImageTransformer2DModel(
        in_channels=4 * channels,
        out_channels=channels,
        num_layers=layers,
        attention_head_dim=sum(axes),
        num_attention_heads=heads,
        joint_attention_dim=context,
        axes_dims_rope=axes,
        **more,
    )


def answer(peer, x, t, context, mask=None, references=(), indices=None) -> torch.Tensor:
    """Latents [N, C, H, W] as diffusers' pipelines pack them. -> [N, C, H, W]"""
    pictures = [x, *references]
    tokens = torch.from_numpy(np.concatenate([pack(picture) for picture in pictures], axis=1))
    shapes = [[(1, picture.shape[2] // 2, picture.shape[3] // 2) for picture in pictures]] * len(x)
    y = peer(
        hidden_states=tokens,
        encoder_hidden_states=torch.from_numpy(context),
        encoder_hidden_states_mask=None if mask is None else torch.from_numpy(mask),
        timestep=torch.from_numpy(t),
        img_shapes=shapes,
    ).sample
    H, W = x.shape[2:]
    return torch.from_numpy(unpack(y[:, : H * W // 4].numpy(), H, W))


def weights_of(peer):
    return {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}


def mask_of(config):
    if "holes" in config:
        return np.array([[1, 0, 1, 1, 0, 0, 1, 1, 0], [0, 1, 1, 0, 1, 1, 1, 0, 1]])
    if "seen" not in config:
        return None
    return (np.arange(config["tokens"]) < np.array(config["seen"])[:, None]).astype(np.int64)


def compare_taps(taps, theirs, layers=2):
    """Of a tuple the first part: a block's text, an attention's picture."""
    own = taps["norm_out"].shape[1]
    assert distance(taps["norm_out"], theirs["norm_out"][:, :own]) <= 1e-12
    same = {name: name for name in ("time_text_embed", "time_text_embed.timestep_embedder")}
    for at in (f"transformer_blocks.{i}" for i in range(layers)):
        same |= {f"{at}.0": at, f"{at}.attn.0": f"{at}.attn"}
        same |= {f"{at}.{stream}_mlp": f"{at}.{stream}_mlp" for stream in ("img", "txt")}
    for ours, name in same.items():
        assert distance(taps[ours], theirs[name]) <= 1e-12, ours


@pytest.mark.parametrize("name", CONFIGS)
def test_the_output_and_every_block(name):
    config = CONFIGS[name]
    x, t = draw((2, 16, *config["hw"]), 1), np.array([0.137, 0.731])
    context, mask = draw((2, config["tokens"], CONTEXT), 2), mask_of(config)
    references = [draw((2, 16, *hw), 3 + i) for i, hw in enumerate(config.get("references", ()))]
    zero = config.get("zero_cond_t", False)
    with float64_throughout():
        peer = peer_qwen_image(config["heads"], config["axes"], zero_cond_t=zero)
        redraw(peer, 9)
        with outputs_of(peer) as theirs:
            want = answer(peer, x, t, context, mask, references)
    taps = Taps()
    m = Module(weights_of(peer), taps=taps)
    got = qwen_image(m, x, t, context, mask, references, zero, axes_dim=config["axes"])
    assert distance(got, want) <= 1e-12
    compare_taps(taps, theirs)


@pytest.mark.parametrize("layers", [1, 4])
def test_layered(layers):
    """The layers' numbers reach beyond the small picture's rows and columns; the condition is at -1."""
    x, condition, t = draw((2, layers, 16, 4, 6), 1), draw((2, 16, 4, 6), 2), np.array([0.137, 0.731])
    context, addition = draw((2, 5, CONTEXT), 3), np.array([0, 1])
    with float64_throughout():
        peer = peer_qwen_image(2, (4, 6, 6), use_additional_t_cond=True, use_layer3d_rope=True)
        redraw(peer, 4)
        tokens = np.concatenate([*(pack(x[:, i]) for i in range(layers)), pack(condition)], axis=1)
        with outputs_of(peer) as theirs:
            y = peer(
                hidden_states=torch.from_numpy(tokens),
                encoder_hidden_states=torch.from_numpy(context),
                timestep=torch.from_numpy(t),
                img_shapes=[[(1, 2, 3)] * (layers + 1)] * 2,
                additional_t_cond=torch.from_numpy(addition),
            ).sample.numpy()
    want = np.stack([unpack(part, 4, 6) for part in np.split(y, layers + 1, axis=1)[:layers]], axis=1)
    taps = Taps()
    got = qwen_image_layered(
        Module(weights_of(peer), taps=taps), x, t, context, condition, addition=addition, axes_dim=(4, 6, 6)
    )
    assert distance(got, torch.from_numpy(want)) <= 1e-12
    compare_taps(taps, theirs)
