"""Z-Image's Fun ControlNet against diffusers in float64: what it adds, the picture's velocity, names, a picture."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImageControlNetModel, ZImageControlNetPipeline
from diffusers.pipelines.z_image import pipeline_z_image_controlnet
from float64_peers import distance, draw, float64_throughout, redraw
from test_models_zimage import CAPTION, batched, peer_zimage, weights_of
from test_pictures import FLUX_VAE, NO_QUANT, _lifted, agree, answer, encoders, of, vae_of  # noqa: F401

from refsd.families.family import Condition
from refsd.models.zimage import zimage
from refsd.models.zimage.network import zimage_keymap
from refsd.models.zimage_controlnet import Control
from refsd.models.zimage_controlnet.network import zimage_control_keymap, zimage_control_size
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

MODES = {"1": None, "2.0": "control_layers", "2.1": "control_noise_refiner"}


def peer_control(mode, heads, axes, layers, channels=16):
    every = 2
    return ZImageControlNetModel(
        control_layers_places=[*range(0, layers, every)],
        control_refiner_layers_places=None if mode is None else [0, 1],
        control_in_dim=channels if mode is None else 2 * channels + 1,
        add_control_noise_refiner=mode,
        dim=heads * sum(axes),
        n_heads=heads,
        n_kv_heads=heads,
    )


@pytest.mark.parametrize("captions", [(7, 7), (5, 37)])
@pytest.mark.parametrize("version", MODES)
def test_what_it_adds_and_the_controlled_transformer(version, captions):
    heads, axes, layers, (H, W), strength = 2, (4, 6, 6), 4, (6, 10), 0.7
    x, t = draw((2, 16, H, W), 1), np.array([0.25, 0.731])
    texts = [draw((n, CAPTION), 10 + i) for i, n in enumerate(captions)]
    with float64_throughout():
        peer = peer_zimage(heads, axes, layers, 2)
        control = peer_control(MODES[version], heads, axes, layers)
        redraw(peer, 2)
        redraw(control, 3)
        base = Module(weights_of(peer, zimage_keymap(layers, 2)))
        refiners = len(control.control_noise_refiner or ())
        m = Module(weights_of(control, zimage_control_keymap(layers // 2, refiners)))
        hint = draw((2, control.config.control_in_dim, H, W), 4)
        control = ZImageControlNetModel.from_transformer(control, peer)
        latents, theirs = ([torch.from_numpy(item)[:, None] for item in many] for many in (x, hint))
        captions_ = [torch.from_numpy(text) for text in texts]
        blocks = control(latents, torch.from_numpy(t), captions_, theirs, conditioning_scale=strength)
        out = peer(latents, torch.from_numpy(t), captions_, controlnet_block_samples=blocks).sample
    want = torch.stack([item[:, 0] for item in out])
    context, lengths = batched(texts)
    seen = {}

    def watched(base, streams):
        seen.update(Control(m, hint, strength)(base, streams))
        return seen

    got = zimage(base, x, t, context, lengths, axes_dim=axes, control=watched)
    assert {*seen} == {*blocks} == {0, 2}
    for number, block in blocks.items():
        for i, length in enumerate(-(-n // 32) * 32 + 32 for n in lengths):
            assert distance(seen[number][i, :length], block[i, :length]) <= 1e-12
    assert distance(got, want) <= 1e-12
    size = zimage_control_size({name: weight.shape for name, weight in m.weights.items()})
    assert (size.layers, size.refiners, size.projects) == (2, refiners, version == "2.1")


@pytest.mark.parametrize("version", MODES)
def test_a_picture(tmp_path, monkeypatch, version):
    """Guided. Their pipeline takes a tensor as it is: -1..1. Its latent is the mean of the posterior."""
    wide = SimpleNamespace(**{**vars(torch), "float32": torch.float64})
    monkeypatch.setattr(pipeline_z_image_controlnet, "torch", wide)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    picture = np.abs(np.sin(draw((1, 3, 16, 24), 11)))
    with float64_throughout():
        network = peer_zimage(1, (32, 48, 48), 4, 2)
        control = peer_control(MODES[version], 1, (32, 48, 48), 4)
        parts = {"transformer": network, "vae": vae_of(16, NO_QUANT, **FLUX_VAE), "controlnet": control}
        for i, part in enumerate(parts.values()):
            redraw(part, 4 + i)
        for name, part in {**parts, "scheduler": scheduler}.items():
            part.save_pretrained(tmp_path / name)
        encoders(tmp_path, "qwen3")
        ours = open_pipeline(open_checkpoint(tmp_path), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
        images = ConditioningImages(control=picture)
        settings = Settings("", "", 24, 16, steps=2, cfg_scale=3.5, like="diffusers", control_strength=0.7)
        plan = resolve(ours, settings, images)
        begin = initial_latent(ours, plan, 0)._replace(noise=draw(plan.latent_shape, 1))
        texts = [draw((9, 40), 2), draw((4, 40), 3)]
        pipe = ZImageControlNetPipeline(
            scheduler, parts["vae"], None, None, network, ZImageControlNetModel.from_transformer(control, network)
        )
        pipe.vae_scale_factor = 2
        theirs = answer(
            pipe, prompt_embeds=[of(texts[0])], negative_prompt_embeds=[of(texts[1])], latents=of(begin.noise),
            num_inference_steps=2, guidance_scale=2.5, width=24, height=16, control_image=of(2 * picture - 1),
            controlnet_conditioning_scale=0.7,
        )  # fmt: skip
    conditioning = Conditioning(*(Condition(text[None]) for text in texts))
    latent = txt2img.sample(ours, plan, conditioning, 0, start=begin)
    agree((latent, txt2img.decode(ours, latent)), theirs)
