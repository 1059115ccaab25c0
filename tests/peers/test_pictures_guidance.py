"""Guidance beyond its scale, against diffusers' pipelines, in float64: CFG rescale and skip-layer guidance."""

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline, StableDiffusionPipeline
from float64_peers import draw, float64_throughout
from test_models_mmdit import MMDiTSize, peer_mmdit
from test_models_unet import peer_unet
from test_pictures import SD1, _lifted, agree, answer, begun, drawn, euler, of, opened, vae_of  # noqa: F401

from refsd.families.family import Condition
from refsd.pipelines.guidance_rule import GuidanceRule
from refsd.pipelines.guided_network import Conditioning
from refsd.pipelines.settings import Settings

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]


def test_rescale(tmp_path):
    with float64_throughout():
        scheduler = euler(timestep_spacing="trailing", prediction_type="v_prediction")
        ours = opened(tmp_path, unet := peer_unet(SD1, 8, 32), vae := vae_of(4), scheduler, "clip")
        settings = Settings(
            "", "", 16, 24, steps=3, cfg_scale=4.0, like="diffusers", schedule="trailing",
            guidance_rule=GuidanceRule(guidance_rescale=0.7),
        )  # fmt: skip
        begin = begun(ours, settings)
        cond, uncond = draw((1, 7, 24), 2), draw((1, 7, 24), 3)
        pipe = StableDiffusionPipeline(vae, None, None, unet, scheduler, None, None, requires_safety_checker=False)
        theirs = answer(
            pipe, prompt_embeds=of(cond), negative_prompt_embeds=of(uncond), latents=of(begin.noise),
            num_inference_steps=3, guidance_scale=4.0, guidance_rescale=0.7, width=16, height=24,
        )  # fmt: skip
    agree(drawn(ours, settings, Conditioning(Condition(cond), Condition(uncond)), begin), theirs)


@pytest.mark.parametrize("share", [0.4, 0.5, 0.75])
def test_skipped_layers(tmp_path, share):
    size = MMDiTSize(3, 24, 2, 16, 12, qk_norm=True, dual=(0,))
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        network = peer_mmdit(size)
        vae = vae_of(16, ("quant_conv.", "post_quant_conv."), scaling_factor=1.5305, shift_factor=0.0609)
        ours = opened(tmp_path, network, vae, scheduler, "clip", "clip_g", "t5")
        rule = GuidanceRule(slg_scale=2.8, skip_layers=(1,), skip_layer_start=0.1, skip_layer_end=share)
        settings = Settings("", "", 24, 16, steps=4, cfg_scale=5.0, like="diffusers", guidance_rule=rule)
        begin = begun(ours, settings)
        texts, pooled = draw((2, 7, size.context_dim), 2), draw((2, size.pooled), 3)
        pipe = StableDiffusion3Pipeline(network, scheduler, vae, None, None, None, None, None, None)
        theirs = answer(
            pipe, prompt_embeds=of(texts[:1]), negative_prompt_embeds=of(texts[1:]),
            pooled_prompt_embeds=of(pooled[:1]), negative_pooled_prompt_embeds=of(pooled[1:]),
            latents=of(begin.noise), num_inference_steps=4, guidance_scale=5.0, width=24, height=16,
            skip_guidance_layers=[1], skip_layer_guidance_scale=2.8, skip_layer_guidance_start=0.1,
            skip_layer_guidance_stop=share,
        )  # fmt: skip
    cond, uncond = (Condition(texts[i : i + 1], pooled[i : i + 1]) for i in range(2))
    ours_drawn = drawn(ours, settings, Conditioning(cond, uncond), begin)
    agree(ours_drawn, theirs)
    plain = drawn(ours, settings._replace(guidance_rule=GuidanceRule()), Conditioning(cond, uncond), begin)
    assert not np.allclose(plain[0], ours_drawn[0])
