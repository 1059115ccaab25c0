"""Stable Diffusion 3's and 3.5's transformers against diffusers, in float64: output, streams and layers."""

import numpy as np
import pytest
import torch
from diffusers import SD3Transformer2DModel
from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
from diffusers.models.attention import JointTransformerBlock
from diffusers.models.embeddings import get_2d_sincos_pos_embed
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of
from tiny_mmdit import MMDiTSize, mmdit_shapes

from refsd.kernels.sincos_positions import sincos_positions
from refsd.models.mmdit import mmdit
from refsd.models.mmdit.network import mmdit_keymap
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, (H, W), tokens.
CONFIGS = {
    "sd3": (MMDiTSize(2), (6, 10), 7),
    "sd3-one-block": (MMDiTSize(3, 16, blocks=1, channels=4, table=12), (2, 14), 1),
    "sd3.5-medium": (MMDiTSize(2, qk_norm=True, dual=(0, 1)), (10, 18), 33),
    "sd3.5-medium-last-dual": (MMDiTSize(3, 24, 2, 3, 10, 17, 5, qk_norm=True, dual=(1,)), (14, 4), 5),
    "dual-without-norm": (MMDiTSize(1, 64, 2, table=11, dual=(0,)), (6, 12), 3),
    "sd3.5-large": (MMDiTSize(2, qk_norm=True), (18, 6), 77),
}
TIMESTEPS = [(999.0, 1.0), (0.0, 500.5), (17.25, 981.125)]


def peer_mmdit(size: MMDiTSize) -> SD3Transformer2DModel:
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=size.channels,
        num_layers=size.blocks,
        attention_head_dim=size.head_dim,
        num_attention_heads=size.heads,
        joint_attention_dim=size.context_dim,
        caption_projection_dim=size.heads * size.head_dim,
        pooled_projection_dim=size.pooled,
        out_channels=size.channels,
        pos_embed_max_size=size.table,
        dual_attention_layers=size.dual,
        qk_norm="rms_norm" if size.qk_norm else None,
    )


def converted(weights: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Through diffusers' own reading of the original key names."""
    checkpoint = {f"model.diffusion_model.{name}": torch.from_numpy(w) for name, w in weights.items()}
    return convert_sd3_transformer_checkpoint_to_diffusers(checkpoint)


def load(peer: SD3Transformer2DModel, weights: dict[str, np.ndarray]) -> None:
    peer.load_state_dict(converted(weights), strict=True)


def inputs(size: MMDiTSize, H: int, W: int, tokens: int) -> tuple[np.ndarray, ...]:
    """x, context, y: two different items."""
    shapes = (2, size.channels, H, W), (2, tokens, size.context_dim), (2, size.pooled)
    return tuple(draw(shape, seed) for seed, shape in enumerate(shapes, 2))


def as_given(x, context, y, timesteps) -> tuple[torch.Tensor, ...]:
    """In the order of diffusers' arguments."""
    return torch.from_numpy(x), torch.from_numpy(context), torch.from_numpy(y), torch.tensor(timesteps)


def layer_names(size: MMDiTSize) -> dict[str, str]:
    """diffusers' name of each layer -> the original's tap."""
    names = {
        "time_text_embed.timestep_embedder": "t_embedder",
        "time_text_embed.text_embedder": "y_embedder",
        "context_embedder": "context_embedder",
        "proj_out": "final_layer",
    }
    for i in range(size.blocks):
        theirs, ours = f"transformer_blocks.{i}", f"joint_blocks.{i}"
        names |= {f"{theirs}.attn.to_out.0": f"{ours}.x_block.attn.proj", f"{theirs}.ff": f"{ours}.x_block.mlp"}
        if i in size.dual:
            names[f"{theirs}.attn2.to_out.0"] = f"{ours}.x_block.attn2.proj"
        if i != size.blocks - 1:
            names[f"{theirs}.attn.to_add_out"] = f"{ours}.context_block.attn.proj"
            names[f"{theirs}.ff_context"] = f"{ours}.context_block.mlp"
    return names


def listen_to_streams(peer: SD3Transformer2DModel) -> dict[str, torch.Tensor]:
    """Where both streams after each block come to lie, under the original's names."""
    streams: dict[str, torch.Tensor] = {}
    for i, child in enumerate(peer.transformer_blocks):

        def hook(_module, _args, output, i=i):
            for side, stream in zip(("context_block", "x_block"), output, strict=True):
                if stream is not None:
                    streams[f"joint_blocks.{i}.{side}"] = stream

        assert isinstance(child, JointTransformerBlock)
        child.register_forward_hook(hook)
    return streams


@pytest.mark.parametrize("name", CONFIGS)
def test_mmdit_and_every_block(name):
    size, (H, W), tokens = CONFIGS[name]
    weights = draw_weights(mmdit_shapes(size), seed=1)
    weights["pos_embed"] = draw(weights["pos_embed"].shape, 5)
    m = Module({name: stored(w) for name, w in weights.items()})
    x, context, y = inputs(size, H, W, tokens)
    with float64_throughout():
        peer = peer_mmdit(size)
        load(peer, weights)
        streams = listen_to_streams(peer)
        for timesteps in TIMESTEPS:
            with outputs_of(peer) as theirs:
                want = peer(*as_given(x, context, y, timesteps)).sample
            m.taps = Taps(ops=True)
            got = mmdit(m, x, np.array(timesteps), context, y, size.head_dim)
            assert distance(got, want) <= 1e-12
            assert len(streams) == 2 * size.blocks - 1
            for at, stream in streams.items():
                assert distance(m.taps[at], stream) <= 1e-12, at
            assert distance(m.taps["x_embedder"], theirs["pos_embed.proj"].flatten(2).transpose(1, 2)) <= 1e-12
            for theirs_at, ours_at in layer_names(size).items():
                assert distance(m.taps[ours_at], theirs[theirs_at]) <= 1e-12, ours_at


def test_skipped_layers():
    size, (H, W), tokens = CONFIGS["sd3.5-medium"]
    weights = draw_weights(mmdit_shapes(size), seed=6)
    m = Module({name: stored(w) for name, w in weights.items()})
    x, context, y = inputs(size, H, W, tokens)
    with float64_throughout():
        peer = peer_mmdit(size)
        load(peer, weights)
        want = peer(*as_given(x, context, y, (700.5, 30.0)), skip_layers=[1]).sample
    got = mmdit(m, x, np.array([700.5, 30.0]), context, y, size.head_dim, skip_layers=(1,))
    assert distance(got, want) <= 1e-12


@pytest.mark.parametrize("name", CONFIGS)
def test_keymap_as_diffusers_converts_it(name):
    size = CONFIGS[name][0]
    weights = {key: stored(w) for key, w in draw_weights(mmdit_shapes(size), seed=7).items()}
    theirs = converted({key: tensor.values() for key, tensor in weights.items()})
    keymap = mmdit_keymap(size.blocks)
    written = keymap.write(weights)
    assert written.keys() == theirs.keys() == peer_mmdit(size).state_dict().keys()
    for key, tensor in theirs.items():
        np.testing.assert_array_equal(written[key].values(), tensor.numpy())
    sources, unread = keymap.sources(written)
    assert not unread
    assert sources.keys() == weights.keys()
    for key, source in sources.items():
        np.testing.assert_array_equal(source.read(written).values(), weights[key].values())


def test_the_table_that_diffusers_starts_from():
    """The checkpoint's table is this one, at its training grid's coordinates."""
    with float64_throughout():
        want = get_2d_sincos_pos_embed(48, 7, base_size=7, output_type="pt")
    assert distance(sincos_positions(48, np.arange(7), np.arange(7)), want) <= 1e-12
