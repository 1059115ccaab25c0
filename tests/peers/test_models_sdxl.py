"""SD 2's and SDXL's UNets and text encoders against diffusers and transformers, in float64, block by block."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_open_clip_checkpoint
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_clip import prompts
from test_models_unet import block_names
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from refsd.families.sdxl import with_sizes
from refsd.models.clip import clip_text, clip_text_with_projection
from refsd.models.clip.network import CLIPSize, clip_keymap
from refsd.models.clip.openclip_names import OpenCLIP
from refsd.models.unet import unet
from refsd.models.unet.network import unet_keymap
from refsd.models.unet.tensors import UNetSize, unet_size
from refsd.module import Module, Taps
from refsd.networks.keymap import Keymap
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer


class Config(NamedTuple):
    """
    size:   channels, levels and which of them attend
    depth:  transformer blocks, a level
    pooled: channels of the pooled text, 0 where there is no label_emb
    sizes:  how many numbers follow it
    more:   what else diffusers is told
    """

    size: UNetSize
    depth: list[Any]
    hw: tuple[int, int]
    tokens: int
    pooled: int = 0
    sizes: int = 0
    more: dict[str, Any] | None = None


CONFIGS = {
    "sd2": Config(
        UNetSize(64, (64, 64, 128, 192), (0, 1, 2), 2, 48), [1] * 4, (16, 8), 77, more={"upcast_attention": True}
    ),
    "sd2-inpaint": Config(UNetSize(64, (64, 128), (0, 1), 1, 24, 9), [1] * 2, (6, 10), 3),
    "sdxl": Config(UNetSize(32, (32, 64, 128), (1, 2), 2, 40), [1, 2, 3], (12, 20), 77, 56, 6),
    "sdxl-pix2pix": Config(UNetSize(64, (64, 192), (1,), 1, 33, 8), [1, 2], (10, 6), 1, 24, 6),
    "narrow-sizes": Config(
        UNetSize(64, (64, 128), (1,), 1, 40), [1, 2], (6, 10), 7, 56, 6, {"addition_time_embed_dim": 32}
    ),
    "refiner": Config(UNetSize(32, (32, 64, 128, 128), (1, 2), 2, 40), [2] * 4, (8, 24), 9, 56, 5),
    # As SSD-1B has it: the decoder's depths are its own, and nothing attends in the middle.
    "middle-without-attention": Config(
        UNetSize(32, (32, 64, 128), (1, 2), 2, 40),
        [0, [2, 2], [3, 3]],
        (8, 4),
        11,
        24,
        6,
        {
            "mid_block_type": "UNetMidBlock2D",
            "reverse_transformer_layers_per_block": [[3, 3, 1], [2, 1, 1], 0],
        },
    ),
    # As SDXS has it.
    "no-middle": Config(
        UNetSize(64, (64, 128, 128), (1, 2), 1, 40), [1] * 3, (4, 8), 5, more={"mid_block_type": None}
    ),
    # As SDXS-09 has it: the first attention of the widest level looks at the text too.
    "cross-only": Config(
        UNetSize(128, (128, 256, 512), (0, 1, 2), 1, 40, linear=True, middle=None, cross_only=(0,)),
        [1] * 3,
        (8, 12),
        7,
        more={"mid_block_type": None, "only_cross_attention": [True, False, False]},
    ),
}


def peer_unet(config: Config) -> UNet2DConditionModel:
    size = config.size
    levels = range(len(size.widths))
    kind = {True: "CrossAttn", False: ""}
    widths = list(size.widths)
    channels = (config.more or {}).get("addition_time_embed_dim", 256)
    label = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": channels,
        "projection_class_embeddings_input_dim": config.pooled + channels * config.sizes,
    }
    arguments = {
        "in_channels": size.in_channels,
        "out_channels": size.out_channels,
        "block_out_channels": widths,
        "down_block_types": [f"{kind[i in size.attention]}DownBlock2D" for i in levels],
        "up_block_types": [f"{kind[i in size.attention]}UpBlock2D" for i in reversed(levels)],
        "layers_per_block": size.res_blocks,
        "cross_attention_dim": size.context_dim,
        "attention_head_dim": [max(1, width // 64) for width in widths],  # theirs is the number of heads
        "transformer_layers_per_block": config.depth,
        "use_linear_projection": True,
    }
    return UNet2DConditionModel(**arguments | (label if config.pooled else {}) | (config.more or {}))


def read(keymap: Keymap, state: dict[str, torch.Tensor]):
    """A peer's tensors under our names."""
    theirs = {name: stored(tensor.numpy()) for name, tensor in state.items()}
    found, rest = keymap.sources(theirs)
    assert rest == []
    return {name: source.read(theirs) for name, source in found.items()}


def unet_keymap_of(size: UNetSize) -> Keymap:
    return unet_keymap(len(size.widths), size.res_blocks, size.attention)


def is_block(name: str) -> bool:
    """Whether diffusers' module is one that our taps know."""
    *_, before, last = "", *name.split(".")
    numbered = ("resnets", "attentions", "transformer_blocks", "downsamplers", "upsamplers")
    return before in numbered or last in ("conv_in", "mid_block", "attn1", "attn2", "ff")


def deeper(names: dict[str, str], theirs: dict[str, torch.Tensor]) -> dict[str, str]:
    """All of a level's transformer blocks, of which block_names knows the first; without what is not there."""
    first = "transformer_blocks.0"
    depth = {there: range(3 if first in there else 1) for there in names}
    at = {
        there.replace(first, f"transformer_blocks.{n}"): names[there].replace(first, f"transformer_blocks.{n}")
        for there, ns in depth.items()
        for n in ns
    }
    return {there: ours for there, ours in at.items() if there in theirs}


@pytest.mark.parametrize("name", CONFIGS)
def test_unet_and_every_block(name):
    config = CONFIGS[name]
    size = config.size
    with float64_throughout():
        peer = peer_unet(config)
        redraw(peer, 1)
        state = peer.state_dict()
        weights = read(unet_keymap_of(size), state)
        m = Module(weights)
        x, context = draw((2, size.in_channels, *config.hw), 2), draw((2, config.tokens, size.context_dim), 3)
        timesteps = np.array([999.0, 17.25])
        y = added = None
        if config.pooled:
            pooled = draw((2, config.pooled), 4)
            sizes = np.array([[1024.0, 768, 0, 13, 512, 1001], [33, 4096, 250, 8, 640, 2.5]])[:, : config.sizes]
            y = with_sizes(m, pooled, sizes)
            added = {"text_embeds": torch.from_numpy(pooled), "time_ids": torch.from_numpy(sizes)}
        with outputs_of(peer) as theirs:
            want = peer(
                torch.from_numpy(x),
                torch.tensor(timesteps),
                torch.from_numpy(context),
                added_cond_kwargs=added,
            ).sample
    m.taps = Taps()
    got = unet(m, x, timesteps, context, y=y)
    assert distance(got, want) <= 1e-12
    assert unet_size({name: w.shape for name, w in weights.items()}).cross_only == size.cross_only
    blocks = deeper(block_names(size), theirs)
    assert blocks.keys() == set(filter(is_block, theirs))
    for theirs_at, ours_at in blocks.items():
        tap = m.taps[ours_at]
        assert distance(tap.reshape(theirs[theirs_at].shape), theirs[theirs_at]) <= 1e-12, ours_at


@pytest.mark.parametrize("name", ["sd2", "sdxl", "refiner"])
def test_the_unet_s_names_are_the_original_s(name):
    """diffusers reads them from a single file."""
    config = CONFIGS[name]
    peer = peer_unet(config)
    redraw(peer, 1)
    state = peer.state_dict()
    weights = read(unet_keymap_of(config.size), state)
    original = {f"model.diffusion_model.{name}": torch.from_numpy(w.values()) for name, w in weights.items()}
    back = convert_ldm_unet_checkpoint(original, dict(peer.config))
    written = unet_keymap_of(config.size).write(weights)
    assert back.keys() == state.keys() == written.keys()
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor)
        np.testing.assert_array_equal(written[name].values(), tensor.numpy())


def test_a_label_that_is_missing_or_too_many_is_an_error():
    config = CONFIGS["sdxl-pix2pix"]
    weights = read(unet_keymap_of(config.size), peer_unet(config).state_dict())
    x, context = draw((1, 8, 2, 2), 2), draw((1, 1, 33), 3)
    with pytest.raises(BadInput, match="y is missing"):
        unet(Module(weights), x, np.ones(1), context)
    with pytest.raises(BadInput, match="192 channels: expected a multiple of head_dim, which is 5"):
        unet(Module(weights), x, np.ones(1), context, y=draw((1, 24 + 6 * 256), 4), head_dim=5)
    plain = {name: w for name, w in weights.items() if not name.startswith("label_emb")}
    with pytest.raises(BadInput, match="y is given"):
        unet(Module(plain), x, np.ones(1), context, y=draw((1, 24 + 6 * 256), 4))


# A size, tokens, the channels of the projection.
ENCODERS = {
    "H": (CLIPSize(hidden=128, layers=4, mlp=512, vocab=500), 77, 64),
    "bigG": (CLIPSize(hidden=192, layers=3, mlp=768, vocab=300), 77, 192),
    "short": (CLIPSize(hidden=64, layers=2, mlp=80, vocab=40, positions=9), 7, 33),
}


def peer_clip(kind, size: CLIPSize, eos: int, projection: int):
    config = CLIPTextConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        max_position_embeddings=size.positions,
        projection_dim=projection,
        hidden_act="gelu",
        bos_token_id=0,
        eos_token_id=eos,
        pad_token_id=1,
    )
    return kind(config).eval()


def padded_with_zero(size: CLIPSize, tokens: int, eos: int) -> np.ndarray:
    """OpenCLIP's tokenizer fills up with 0."""
    ids = prompts(size, tokens, eos)
    ids[1, tokens // 2 + 1 :] = 0
    return ids


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_openclip_with_projection_and_every_layer(name, legacy):
    """The published configs say 2 for eos, and pool at the highest id: there it is the last of the vocabulary."""
    size, tokens, projection = ENCODERS[name]
    eos = size.vocab - (1 if legacy else 3)
    ids = padded_with_zero(size, tokens, eos)
    with float64_throughout():
        peer = peer_clip(CLIPTextModelWithProjection, size, 2 if legacy else eos, projection)
        redraw(peer, 2)
        out = peer(torch.from_numpy(ids), output_hidden_states=True)
        weights = {name: stored(w.numpy()) for name, w in peer.state_dict().items()}
        norm = peer.get_submodule("text_model.final_layer_norm")
        m = Module(weights, taps=Taps())
        for clip_skip in range(1, size.layers + 1):
            m.taps = Taps()
            hidden, _, pooled = clip_text_with_projection(m, ids, size.hidden // 64, clip_skip=clip_skip, eos=eos)
            assert distance(hidden, out.hidden_states[-1 - (clip_skip - 1)]) <= 1e-12
            assert distance(pooled, out.text_embeds) <= 1e-12
            hidden, _, pooled = clip_text(m, ids, size.hidden // 64, "gelu", clip_skip, eos)
            assert distance(hidden, norm(out.hidden_states[-clip_skip])) <= 1e-12
            assert pooled.shape == (2, size.hidden)
        for i, want in enumerate(out.hidden_states):
            at = f"text_model.encoder.layers.{i - 1}" if i else "text_model.embeddings"
            assert distance(m.taps[at], want) <= 1e-12, at


def test_sd2_s_last_but_one_layer_is_transformers_last():
    """SD 2's own file has 24 layers and skips one; transformers' folder has the 23."""
    size, tokens, _ = ENCODERS["H"]
    eos = size.vocab - 1
    ids = padded_with_zero(size, tokens, eos)
    with float64_throughout():
        peer = peer_clip(CLIPTextModel, size, 2, 64)
        redraw(peer, 2)
        out = peer(torch.from_numpy(ids))
    weights = read(clip_keymap(), peer.state_dict())
    hidden, _, pooled = clip_text(Module(weights), ids, 2, "gelu", eos=eos)
    assert distance(hidden, out.last_hidden_state) <= 1e-12
    assert distance(pooled, out.pooler_output) <= 1e-12
    more = weights | {
        name.replace("layers.3", "layers.4"): stored(draw(w.shape, 5))
        for name, w in weights.items()
        if "layers.3" in name
    }
    hidden, _, _ = clip_text(Module(more), ids, 2, "gelu", clip_skip=2, eos=eos)
    assert distance(hidden, out.last_hidden_state) <= 1e-12


@pytest.mark.parametrize("name", ENCODERS)
def test_openclip_s_own_names_are_read_as_diffusers_reads_them(name):
    size, _, projection = ENCODERS[name]
    peer = peer_clip(CLIPTextModelWithProjection, size, 2, projection)
    redraw(peer, 2)
    state = peer.state_dict()
    keymap = OpenCLIP(size.layers)
    ours = {name: stored(w.numpy()) for name, w in state.items()}
    original = keymap.write(ours)
    assert {"text_projection", "positional_embedding", "transformer.resblocks.1.attn.in_proj_bias"} <= set(original)
    prefix = "conditioner.embedders.1.model."
    theirs = {prefix + name: torch.from_numpy(w.values()) for name, w in original.items()}
    back = convert_open_clip_checkpoint(SimpleNamespace(config=peer.config), theirs, prefix)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    found, rest = keymap.sources([*original, "logit_scale"])
    assert rest == ["logit_scale"]
    assert found.keys() == ours.keys()
    shapes = {name: w.shape for name, w in original.items()}
    for name, source in found.items():
        tensor = source.read(original)
        assert source.shape(shapes) == tensor.shape == ours[name].shape
        np.testing.assert_array_equal(tensor.values(), ours[name].values())
