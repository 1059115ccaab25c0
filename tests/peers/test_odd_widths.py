"""UNets and autoencoders whose widths are no multiples of the first, with heads of their own on each level.

Against diffusers in float64, from the folder that it saves and from one file under the original's names, where
heads and groups are given as params.
"""

import numpy as np
import pytest
import tiny_adapters
import torch
from diffusers import AutoencoderKL, AutoencoderKLFlux2, UNet2DConditionModel
from float64_peers import distance, draw, float64_throughout, redraw
from test_models_controlnet import peer_controlnet
from test_models_flux2 import answers_vae, redraw_statistics

from refsd.components import forward, load
from refsd.models.unet import size_condition
from refsd.models.unet.tensors import UNetSize
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

F64 = Arithmetic(FLOAT64)
TIMESTEPS = np.array([981.25, 31.7])


def unet(widths, attention, heads, groups, **more):
    kind = {True: "CrossAttn", False: ""}
    levels = range(len(widths))
    return UNet2DConditionModel(
        block_out_channels=widths,
        down_block_types=[f"{kind[i in attention]}DownBlock2D" for i in levels],
        up_block_types=[f"{kind[i in attention]}UpBlock2D" for i in reversed(levels)],
        attention_head_dim=heads,
        norm_num_groups=groups,
        **{"cross_attention_dim": 24, "layers_per_block": 1} | more,
    )


LABEL = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 7 + 6 * 256,
}
LINEAR = {"use_linear_projection": True}
UNETS = {
    "three levels": lambda: unet((32, 48, 96), (0, 1, 2), 8, 16),
    "heads on each level": lambda: unet((32, 48, 96), (0, 1, 2), [4, 6, 3], 16),
    "falling": lambda: unet((48, 32, 40), (1, 2), [5, 2, 8], 8, layers_per_block=2, in_channels=9, out_channels=5),
    "the last attends, others not": lambda: unet((15, 35, 10, 20), (3,), [7, 7, 7, 4], 5),
    "linear": lambda: unet((32, 48), (0, 1), [2, 3], 16, **LINEAR, transformer_layers_per_block=[1, 2]),
    "linear, as many heads on every level": lambda: unet((64, 48), (0, 1), 8, 16, **LINEAR),
    "labelled": lambda: unet((24, 36, 60), (1, 2), [1, 4, 5], 12, **LINEAR, **LABEL),
}


def answered(opened, component, inputs, **params):
    m, told = load(opened, component, F64)
    return forward(component, m, inputs, told | params)


def one_file(folder, path, prefix):
    """The folder's only component in one file, under the original's names, and what its config tells."""
    (held,) = open_checkpoint(folder).components.values()
    tiny_adapters.save(path, {prefix + name: held.weights[name].values() for name in held.weights})
    return open_checkpoint(path), {
        name: held.config[name] for name in ("num_heads", "num_groups") & held.config.keys()
    }


@pytest.mark.parametrize("name", UNETS)
def test_unet(name, tmp_path):
    with float64_throughout():
        peer = UNETS[name]()
        redraw(peer, 3)
        config = peer.config
        side = 2 ** (len(config.block_out_channels) - 1)
        x, context = draw((2, config.in_channels, side, 3 * side), 1), draw((2, 5, 24), 2)
        inputs, added = {"x": x, "timesteps": TIMESTEPS, "context": context}, None
        if config.addition_embed_type:
            pooled, sizes = draw((2, 7), 4), 900 * np.abs(draw((2, 6), 5))
            inputs["y"] = size_condition(Module({}, F64), pooled, sizes)
            added = {"text_embeds": torch.from_numpy(pooled), "time_ids": torch.from_numpy(sizes)}
        given = map(torch.from_numpy, (x, TIMESTEPS, context))
        want = peer(*given, added_cond_kwargs=added).sample
        peer.save_pretrained(tmp_path / "unet")
    assert distance(answered(open_checkpoint(tmp_path), "unet", inputs)["out"], want) <= 1e-12
    single, params = one_file(tmp_path, tmp_path / "a.safetensors", "model.diffusion_model.")
    assert single.components["unet"].size.widths == config.block_out_channels
    assert distance(answered(single, "unet", inputs, **params)["out"], want) <= 1e-12


def test_controlnet(tmp_path):
    size = UNetSize(32, (32, 48, 40), (0, 2), 1, 24)
    with float64_throughout():
        peer = peer_controlnet(size, [4, 3, 5], 8, (4, 4, 6, 7))
        redraw(peer, 3)
        x, context, hint = draw((2, 4, 4, 8), 1), draw((2, 5, 24), 2), draw((2, 3, 32, 64), 3)
        want = peer(*map(torch.from_numpy, (x, TIMESTEPS, context, hint)))
        peer.save_pretrained(tmp_path / "controlnet")
    inputs = {"x": x, "timesteps": TIMESTEPS, "context": context, "hint": hint}
    got = list(answered(open_checkpoint(tmp_path), "controlnet", inputs).values())
    for ours, theirs in zip(got, [*want.down_block_res_samples, want.mid_block_res_sample], strict=True):
        assert distance(ours, theirs) <= 1e-12


VAES = {
    "two levels": ((32, 48), 16, {}),
    "falling": ((40, 24, 32), 8, {"layers_per_block": 2, "latent_channels": 3}),
    "bare": ((15, 35, 10), 5, {"latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}),
    "no attention": ((32, 48), 16, {"mid_block_add_attention": False}),
}


@pytest.mark.parametrize("name", VAES)
def test_vae(name, tmp_path):
    widths, groups, more = VAES[name]
    levels = len(widths)
    with float64_throughout():
        peer = AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * levels,
            up_block_types=["UpDecoderBlock2D"] * levels,
            block_out_channels=widths,
            norm_num_groups=groups,
            **more,
        )
        redraw(peer, 3)
        side = 2 ** (levels - 1)
        x, z = draw((2, 3, 2 * side, 3 * side + 1), 1), draw((2, peer.config.latent_channels, 3, 2), 2)
        mean = peer.encode(torch.from_numpy(x)).latent_dist.mean
        out = peer.decode(torch.from_numpy(z)).sample
        peer.save_pretrained(tmp_path / "vae")
    single, params = one_file(tmp_path, tmp_path / "a.safetensors", "first_stage_model.")
    for opened, told in ((open_checkpoint(tmp_path), {}), (single, params)):
        assert distance(answered(opened, "vae-encoder", {"x": x}, **told)["mean"], mean) <= 1e-12
        assert distance(answered(opened, "vae-decoder", {"z": z}, **told)["out"], out) <= 1e-12
    if groups != 32:
        with pytest.raises(BadInput, match="param num_groups is 32, the model takes a divisor of"):
            answered(single, "vae-decoder", {"z": z})


def test_flux2_vae(tmp_path):
    with float64_throughout():
        peer = AutoencoderKLFlux2(
            down_block_types=["DownEncoderBlock2D"] * 3,
            up_block_types=["UpDecoderBlock2D"] * 3,
            block_out_channels=(16, 40, 24),
            decoder_block_out_channels=(24, 24, 32),
            layers_per_block=1,
            latent_channels=3,
            norm_num_groups=8,
        )
        redraw(peer, 3)
        redraw_statistics(peer, 2)
        z = draw((2, 12, 2, 3), 1)

        _, want = answers_vae(peer, draw((1, 3, 8, 8), 2), z)
        peer.save_pretrained(tmp_path / "vae")
    assert distance(answered(open_checkpoint(tmp_path), "flux2-vae-decoder", {"z": z})["out"], want) <= 1e-12
