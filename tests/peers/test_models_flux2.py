"""The whole of FLUX.2, its autoencoder and its contexts against diffusers, in float64."""

import types

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLFlux2
from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers
from diffusers.models.transformers.transformer_flux2 import Flux2Transformer2DModel
from diffusers.pipelines.flux2.pipeline_flux2 import Flux2Pipeline
from diffusers.pipelines.flux2.pipeline_flux2_klein import Flux2KleinPipeline
from diffusers.pipelines.flux2.pipeline_flux2_klein_kv import Flux2KleinKVPipeline
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_mistral import peer_mistral
from test_models_mistral import weights_of as weights_of_mistral
from test_models_qwen3 import peer_config as qwen3_config
from test_models_qwen3 import weights_of as weights_of_qwen3
from test_models_vae import assert_blocks_agree, block_names
from transformers import Qwen3Model

from refsd.models.flux2 import MISTRAL_LAYERS, QWEN3_LAYERS, flux2, stacked
from refsd.models.flux2.network import FLUX2_DEV, FLUX2_KLEIN_4B, FLUX2_KLEIN_9B, flux2_keymap, flux2_shapes
from refsd.models.mistral import mistral
from refsd.models.mistral.network import MistralSize
from refsd.models.qwen3 import qwen3
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.vae.network import VAESize
from refsd.models.vae_flux2 import decode, encode
from refsd.models.vae_flux2.network import Flux2VAESize, flux2_vae_keymap, flux2_vae_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CONFIGS = {
    "dev": {"heads": 3, "axes": (4, 6, 2, 4), "txt": 7, "hw": (3, 5), "guidance": True},
    "klein, real axes": {"heads": 1, "axes": (32, 32, 32, 32), "txt": 13, "hw": (5, 2), "guidance": False},
    "dev, real axes": {"heads": 1, "axes": (32, 32, 32, 32), "txt": 1, "hw": (1, 7), "guidance": True},
    "reference": {"heads": 2, "axes": (2, 4, 6, 4), "txt": 5, "hw": (3, 4), "guidance": True, "more": [(5, 2)]},
    "three references": {
        "heads": 2,
        "axes": (6, 4, 2, 4),
        "txt": 3,
        "hw": (2, 3),
        "guidance": False,
        "more": [(1, 3), (4, 1), (2, 3)],
    },
}
C, E = 12, 11


def peer_flux2(heads, axes, guidance, channels=C, context=E, doubles=2, singles=3, **more):
    return Flux2Transformer2DModel(
        in_channels=channels,
        num_layers=doubles,
        num_single_layers=singles,
        attention_head_dim=sum(axes),
        num_attention_heads=heads,
        joint_attention_dim=context,
        guidance_embeds=guidance,
        axes_dims_rope=axes,
        **more,
    )


def weights_of(peer, keymap):
    """The peer's tensors under the original names."""
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items() if tensor.ndim}
    sources, unread = keymap.sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


def answer(peer, x, timesteps, context, guidance=None, more=()):
    """As the pipeline calls it: tokens and their ids, the references behind x."""
    x, timesteps, context, guidance, *more = (
        None if a is None else torch.from_numpy(a) for a in (x, timesteps, context, guidance, *more)
    )
    ids = Flux2Pipeline._prepare_latent_ids(x)
    tokens = [Flux2Pipeline._pack_latents(latent) for latent in (x, *more)]
    every = [ids]
    if more:
        here = Flux2Pipeline._prepare_image_ids([latent[:1] for latent in more])
        every.append(here.repeat(len(x), 1, 1))
    y = peer(
        torch.cat(tokens, dim=1),
        context,
        timesteps,
        torch.cat(every, dim=1),
        Flux2Pipeline._prepare_text_ids(context),
        guidance,
    ).sample
    return Flux2Pipeline._unpack_latents_with_ids(y[:, : tokens[0].shape[1]], ids)


@pytest.mark.parametrize("name", CONFIGS)
def test_flux2(name):
    config = CONFIGS[name]
    x, context = draw((2, C, *config["hw"]), 1), draw((2, config["txt"], E), 2)
    more = [draw((2, C, *hw), 10 + k) for k, hw in enumerate(config.get("more", []))]
    t, guidance = np.array([0.98125, 0.0317]), np.array([4.0, 1.25]) if config["guidance"] else None
    with float64_throughout():
        peer = peer_flux2(config["heads"], config["axes"], config["guidance"])
        redraw(peer, 4)
        with outputs_of(peer) as outputs:
            want = answer(peer, x, t, context, guidance, more)

    taps = Taps()
    m = Module(weights_of(peer, flux2_keymap(2, 3)), taps=taps)
    reference = more[0] if len(more) == 1 else more or None
    got = flux2(m, x, t, context, guidance, reference, config["axes"])
    assert distance(got, want) <= 1e-12
    for i in range(2):
        # Of a block's pair, diffusers gives the text first.
        assert distance(taps[f"double_blocks.{i}.1"], outputs[f"transformer_blocks.{i}"]) <= 1e-12
        assert distance(taps[f"double_blocks.{i}.img_mlp"], outputs[f"transformer_blocks.{i}.ff"]) <= 1e-12
        assert distance(taps[f"double_blocks.{i}.txt_mlp"], outputs[f"transformer_blocks.{i}.ff_context"]) <= 1e-12
    for i in range(3):
        assert distance(taps[f"single_blocks.{i}"], outputs[f"single_transformer_blocks.{i}"]) <= 1e-12
    assert distance(taps["time_in"], outputs["time_guidance_embed.timestep_embedder"]) <= 1e-12
    assert ("guidance_in" in taps) == config["guidance"]
    if config["guidance"]:
        assert distance(taps["guidance_in"], outputs["time_guidance_embed.guidance_embedder"]) <= 1e-12
    tokens = x[0, 0].size
    assert distance(taps["final_layer"], outputs["proj_out"][:, :tokens]) <= 1e-12


def cached_answer(peer, x, timesteps, context, more, cache=None):
    """As klein-KV's pipeline calls it -> answer, cache. cache: of the first step, which stores the references'"""
    Flux2KleinKVPipeline._set_kv_attn_processors(types.SimpleNamespace(transformer=peer))
    x, timesteps, context, *more = (torch.from_numpy(a) for a in (x, timesteps, context, *more))
    ids, tokens = Flux2Pipeline._prepare_latent_ids(x), Flux2Pipeline._pack_latents(x)
    every, mode = ids, {"kv_cache_mode": "cached", "kv_cache": cache}
    if cache is None:
        kept = torch.cat([Flux2Pipeline._pack_latents(latent) for latent in more], dim=1)
        places = Flux2Pipeline._prepare_image_ids([latent[:1] for latent in more]).repeat(len(x), 1, 1)
        tokens, every = torch.cat([kept, tokens], dim=1), torch.cat([places, ids], dim=1)
        mode = {"kv_cache_mode": "extract", "num_ref_tokens": kept.shape[1]}
    text = Flux2Pipeline._prepare_text_ids(context)
    y, *made = peer(tokens, context, timesteps, every, text, return_dict=False, **mode)
    return Flux2Pipeline._unpack_latents_with_ids(y, ids), made[0] if made else cache


@pytest.mark.parametrize("name", ["reference", "three references"])
def test_cached_references(name):
    """Their second step reads what the first has stored; ours computes it anew."""
    config = CONFIGS[name]
    latents = [draw((2, C, *config["hw"]), 1), draw((2, C, *config["hw"]), 3)]
    context, times = draw((2, config["txt"], E), 2), np.array([[0.98125, 0.0317], [0.5, 0.0125]])
    more = [draw((2, C, *hw), 10 + k) for k, hw in enumerate(config["more"])]
    cache, seen = None, []
    with float64_throughout():
        peer = peer_flux2(config["heads"], config["axes"], False)
        redraw(peer, 4)
    weights, J, drawn = weights_of(peer, flux2_keymap(2, 3)), config["txt"], latents[0][0, 0].size
    for step, (x, t) in enumerate(zip(latents, times, strict=True)):
        with float64_throughout(), outputs_of(peer) as outputs:
            want, cache = cached_answer(peer, x, t, context, more, cache)
        taps = Taps()
        m = Module(weights, taps=taps)
        got = flux2(m, x, t, context, None, more, config["axes"], cached_references=True)
        assert distance(got, want) <= 1e-12
        assert distance(flux2(m, x, t, context, None, more, config["axes"]), want) > 1e-3
        for i in range(3):
            block, theirs = taps[f"single_blocks.{i}"], outputs[f"single_transformer_blocks.{i}"]
            rows = [*range(J), *range(theirs.shape[1] - drawn, theirs.shape[1])]
            assert distance(block[:, : J + drawn], theirs[:, rows]) <= 1e-12
            if step == 0:
                assert distance(block[:, J + drawn :], theirs[:, J:-drawn]) <= 1e-12
        seen.append(block[:, J + drawn :])
    np.testing.assert_array_equal(*seen)


def test_names_are_those_that_diffusers_converts():
    with float64_throughout():
        peer = peer_flux2(2, (4, 4, 4, 4), True)
        redraw(peer, 1)
    ours = weights_of(peer, flux2_keymap(2, 3))
    there = {name: torch.from_numpy(np.array(tensor.data)) for name, tensor in ours.items()}
    theirs = convert_flux2_transformer_checkpoint_to_diffusers(there)
    state = peer.state_dict()
    assert set(theirs) == set(state)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in state.items())


FULL_SIZE = {
    "dev": (FLUX2_DEV, 48),
    "klein-4B": (FLUX2_KLEIN_4B, 24),
    "klein-9B": (FLUX2_KLEIN_9B, 32),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_the_shapes_of_the_real_one(name):
    size, heads = FULL_SIZE[name]
    with torch.device("meta"):
        peer = peer_flux2(
            heads,
            (32, 32, 32, 32),
            size.guidance,
            channels=128,
            context=size.context_dim,
            doubles=size.double_blocks,
            singles=size.single_blocks,
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = flux2_keymap(size.double_blocks, size.single_blocks).sources(shapes)
    assert not unread
    assert {name: source.shape(shapes) for name, source in sources.items()} == flux2_shapes(size)


# The autoencoder: a size, the groups, (H, W) of the latent.
VAES = {
    "real levels": (Flux2VAESize(32, (32, 64, 128, 128), (32, 64, 128, 128)), 32, (1, 3)),
    "narrower decoder": (Flux2VAESize(24, (24, 48), (16, 32), 1, 5), 8, (3, 2)),
}


def peer_vae(size: Flux2VAESize, num_groups: int) -> AutoencoderKLFlux2:
    levels = len(size.widths)
    return AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=size.widths,
        decoder_block_out_channels=size.decoder,
        layers_per_block=size.res_blocks,
        latent_channels=size.latent_channels,
        norm_num_groups=num_groups,
    )


def answers_vae(peer, picture, x):
    """As the pipeline does it, whose own methods are a picture's encoding and the unpacking. -> latent, picture"""
    pipeline = types.SimpleNamespace(vae=peer, _patchify_latents=Flux2Pipeline._patchify_latents)
    latent = Flux2Pipeline._encode_vae_image(pipeline, torch.from_numpy(picture), None)
    mean, std = peer.bn.running_mean, torch.sqrt(peer.bn.running_var + peer.config.batch_norm_eps)
    z = torch.from_numpy(x) * std[:, None, None] + mean[:, None, None]
    return latent, peer.decode(Flux2Pipeline._unpatchify_latents(z)).sample


def redraw_statistics(peer, seed):
    generator = torch.Generator().manual_seed(seed)
    peer.bn.running_mean.normal_(generator=generator)
    peer.bn.running_var.uniform_(1e-4, 2, generator=generator)


@pytest.mark.parametrize("name", VAES)
def test_vae(name):
    size, num_groups, (H, W) = VAES[name]
    factor = 2 ** len(size.widths)
    picture, x = draw((2, 3, H * factor, W * factor), 2), draw((2, 4 * size.latent_channels, H, W), 3)
    with float64_throughout():
        peer = peer_vae(size, num_groups).eval()
        redraw(peer, 4)
        redraw_statistics(peer, 5)
        with outputs_of(peer) as theirs:
            latent, want = answers_vae(peer, picture, x)
        normalised = peer.bn(Flux2Pipeline._patchify_latents(theirs["quant_conv"].chunk(2, 1)[0]))
    weights = weights_of(peer, flux2_vae_keymap(len(size.widths), size.res_blocks))
    assert {name: tensor.shape for name, tensor in weights.items()} == flux2_vae_shapes(size)
    names = VAESize(size.channels, size.widths, size.res_blocks, size.latent_channels)
    m = Module(weights, taps=Taps())
    got = encode(m, picture, num_groups)
    assert distance(got, latent) <= 1e-12
    assert distance(got, normalised) <= 1e-12
    assert_blocks_agree(m.taps, theirs, block_names(names, "encoder"))
    m.taps = Taps()
    assert distance(decode(m, x, num_groups), want) <= 1e-12
    assert_blocks_agree(m.taps, theirs, block_names(names, "decoder"))


def test_the_shapes_of_the_real_vae():
    with torch.device("meta"):
        peer = AutoencoderKLFlux2()
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items() if tensor.ndim}
    sources, unread = flux2_vae_keymap().sources(shapes)
    assert not unread
    assert {name: source.shape(shapes) for name, source in sources.items()} == flux2_vae_shapes(Flux2VAESize())


# The contexts: a language model deep enough, and what its tokenizer gives.
DEEP = {"layers": 31, "hidden": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "mlp": 6, "vocab": 40}
TOKENS = 9


class Tokenizer:
    """Prompt n has n tokens more than the first, and padding behind."""

    def __init__(self, prompts):
        self.ids = np.random.default_rng(7).integers(0, DEEP["vocab"], (len(prompts), TOKENS))
        self.mask = (np.arange(TOKENS) < 4 + np.arange(len(prompts))[:, None]).astype(np.int64)
        self.asked = 0

    def apply_chat_template(self, messages, **kwargs):
        """Mistral's processor gives all ids at once; Qwen3's tokenizer a text."""
        if kwargs["tokenize"]:
            return {"input_ids": torch.from_numpy(self.ids), "attention_mask": torch.from_numpy(self.mask)}
        return messages[0]["content"]

    def __call__(self, text, **kwargs):
        row = slice(self.asked, self.asked + 1)
        self.asked += 1
        return {"input_ids": torch.from_numpy(self.ids[row]), "attention_mask": torch.from_numpy(self.mask[row])}


def test_the_context_of_dev():
    prompts = ["a", "b", "c"]
    tokenizer = Tokenizer(prompts)
    size = MistralSize(**DEEP)
    with float64_throughout():
        peer = peer_mistral(size).eval()
        redraw(peer, 8)
        want = Flux2Pipeline._get_mistral_3_small_prompt_embeds(peer, tokenizer, prompts)
    states = mistral(Module(weights_of_mistral(peer)), tokenizer.ids, tokenizer.mask, size.head_dim)
    assert distance(stacked(states), want) <= 1e-12
    assert distance(stacked(states, MISTRAL_LAYERS), want) <= 1e-12


def test_the_context_of_klein():
    prompts = ["a", "b", "c"]
    tokenizer = Tokenizer(prompts)
    with float64_throughout():
        peer = Qwen3Model(qwen3_config(Qwen3Size(**DEEP))).eval()
        redraw(peer, 9)
        want = Flux2KleinPipeline._get_qwen3_prompt_embeds(peer, tokenizer, prompts)
    states = qwen3(Module(weights_of_qwen3(peer)), tokenizer.ids, tokenizer.mask)
    assert distance(stacked(states, QWEN3_LAYERS), want) <= 1e-12
