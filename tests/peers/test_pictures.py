"""From what the encoders said to a picture, against diffusers' pipelines, in float64.

Both run from one folder, with one noise, guidance on, not square; test_conditioning has the way from the prompt.
The casts to float32 that no torch function sees (NumPy's in schedulers, Z-Image's assertion) are lifted by name.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    ChromaPipeline,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    FluxPipeline,
    QwenImagePipeline,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    ZImagePipeline,
)
from diffusers.pipelines.z_image import pipeline_z_image
from diffusers.schedulers import scheduling_euler_discrete, scheduling_flow_match_euler_discrete
from float64_peers import distance, draw, float64_throughout, redraw
from test_models_chroma import peer_chroma
from test_models_clip import peer_clip
from test_models_flux2 import peer_flux2, redraw_statistics
from test_models_flux2 import peer_vae as peer_flux2_vae
from test_models_flux_whole import E as FLUX_E
from test_models_flux_whole import V as FLUX_V
from test_models_flux_whole import peer_flux
from test_models_mistral import peer_mistral
from test_models_mmdit import MMDiTSize as PeerSize
from test_models_mmdit import peer_mmdit
from test_models_qwen3 import peer_config
from test_models_qwen_image import peer_qwen_image
from test_models_qwen_vl import peer_text_model
from test_models_sdxl import Config, peer_unet
from test_models_sdxl import peer_clip as peer_clip_of
from test_models_t5 import peer_t5
from test_models_unet import peer_unet as peer_unet_sd1
from test_models_vae import peer_vae
from test_models_vae_wan import peer_vae as peer_wan_vae
from test_models_zimage import peer_zimage
from transformers import CLIPTextModelWithProjection, Qwen3Model

from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.families.family import Condition, Encoded, EncodedPrompt
from refsd.models.clip.network import CLIPSize
from refsd.models.mistral.network import MistralSize
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import QWEN2_5_SECTIONS, qwen2_5_vl
from refsd.models.qwen_vl.network import Qwen25Size
from refsd.models.t5.network import T5Size
from refsd.models.unet.tensors import UNetSize
from refsd.models.vae.network import VAESize
from refsd.models.vae_flux2.network import Flux2VAESize
from refsd.models.vae_wan.network import WanVAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.initial_latent import InitialLatent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning
from refsd.samplers.noise import TorchCpu
from refsd.weights import detect, open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

LLM = {"hidden": 40, "layers": 3, "heads": 2, "kv_heads": 1, "head_dim": 128, "mlp": 56, "vocab": 50}
QWEN_VL = Qwen25Size(256, 2, 2, 1, 128, 56, 50), QWEN2_5_SECTIONS, 1e6
BIGG = 128


@pytest.fixture(autouse=True)
def _lifted(monkeypatch):
    """NumPy's and the pipelines' float32, and what these tests make bigG's width."""
    wide = SimpleNamespace(**{**vars(np), "float32": np.float64})
    for module in (scheduling_euler_discrete, scheduling_flow_match_euler_discrete):
        monkeypatch.setattr(module, "np", wide)
    monkeypatch.setattr(pipeline_z_image, "torch", SimpleNamespace(**{**vars(torch), "float32": torch.float64}))
    monkeypatch.setattr(detect, "_BIGG", BIGG)


def encoders(folder, *names):
    """Small ones: they are opened, and not asked."""
    size = CLIPSize(hidden=64, layers=2, mlp=40, vocab=90, positions=11)
    made = {
        "clip": lambda: peer_clip(size, 1, 89),
        "clip_g": lambda: peer_clip_of(CLIPTextModelWithProjection, size._replace(hidden=BIGG), 89, 24),
        "t5": lambda: peer_t5(T5Size(40, 2, 3, 8, 72, vocab=50)),
        "qwen3": lambda: Qwen3Model(peer_config(Qwen3Size(**LLM))),
        "mistral": lambda: peer_mistral(MistralSize(**LLM)),
        "qwen2_5_vl": lambda: peer_text_model(qwen2_5_vl, *QWEN_VL),
    }
    for i, name in enumerate(names):
        made[name]().save_pretrained(folder / f"text_encoder{f'_{i + 1}' if i else ''}")


def vae_of(channels, quant=(), **config):
    return peer_vae(VAESize(32, (32, 64), 1, channels), 32, quant, **config)


def opened(folder, denoiser, vae, scheduler, *names, seed=4):
    """The parts with weights of their own, saved, and refsd's pipeline of the folder."""
    redraw(denoiser, seed)
    redraw(vae, seed + 1)
    denoiser.save_pretrained(folder / ("unet" if "UNet" in type(denoiser).__name__ else "transformer"))
    vae.save_pretrained(folder / "vae")
    scheduler.save_pretrained(folder / "scheduler")
    encoders(folder, *names)
    return open_pipeline(open_checkpoint(folder), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)


def begun(ours, settings, seed=1):
    return InitialLatent(draw(resolve(ours, settings).latent_shape, seed), TorchCpu(0))


def drawn(ours, settings, conditioning, begin):
    """-> latents, picture"""
    latent = txt2img.sample(ours, resolve(ours, settings), conditioning, 0, start=begin)
    return latent, txt2img.decode(ours, latent)


def answer(pipe, seed=None, **given) -> tuple[torch.Tensor, torch.Tensor]:
    """The peer's latents and picture, which is not clipped. seed: of its generator; None: it needs none"""
    pipe.set_progress_bar_config(disable=True)
    pipe.image_processor.postprocess = lambda image, output_type="pt", **_: image
    made = []
    for kind in ("latent", "pt"):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        made.append(pipe(**given, generator=generator, output_type=kind).images)
    return made[0], made[1]


def agree(ours, theirs):
    for mine, peer in zip(ours, theirs, strict=True):
        assert distance(mine, peer) <= 1e-12


def of(array):
    return torch.from_numpy(array)


def euler(**more):
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    return EulerDiscreteScheduler(**betas | {"steps_offset": 1} | more)


SD1 = UNetSize(32, (32, 64), (0,), 1, 24)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("spacing", ["leading", "trailing"])
@pytest.mark.parametrize("family", ["sd15", "sd2"])
def test_stable_diffusion(tmp_path, family, prediction, spacing):
    config = Config(UNetSize(64, (64, 128), (0, 1), 1, 24), [1] * 2, (6, 10), 3)
    with float64_throughout():
        scheduler = euler(timestep_spacing=spacing, prediction_type=prediction)
        unet = peer_unet_sd1(SD1, 8, 32) if family == "sd15" else peer_unet(config)
        ours = opened(tmp_path, unet, vae := vae_of(4), scheduler, "clip")
        settings = Settings("", "", 16, 24, steps=3, cfg_scale=4.0, like="diffusers", schedule=spacing)
        begin = begun(ours, settings)
        cond, uncond = draw((1, 7, 24), 2), draw((1, 7, 24), 3)
        pipe = StableDiffusionPipeline(vae, None, None, unet, scheduler, None, None, requires_safety_checker=False)
        theirs = answer(
            pipe, prompt_embeds=of(cond), negative_prompt_embeds=of(uncond), latents=of(begin.noise),
            num_inference_steps=3, guidance_scale=4.0, width=16, height=24,
        )  # fmt: skip
    agree(drawn(ours, settings, Conditioning(Condition(cond), Condition(uncond)), begin), theirs)


@pytest.mark.parametrize(
    "betas",
    [
        {"beta_schedule": "linear", "beta_start": 0.0001, "beta_end": 0.02, "num_train_timesteps": 500},
        {"beta_schedule": "squaredcos_cap_v2"},
        {"rescale_betas_zero_snr": True},
        {"trained_betas": [0.01 + 0.001 * i for i in range(100)], "num_train_timesteps": 100},
    ],
    ids=lambda betas: next(iter(betas.values())),
)
def test_betas_of_the_folder(tmp_path, betas):
    with float64_throughout():
        scheduler = euler(**{"timestep_spacing": "trailing", "prediction_type": "v_prediction"} | betas)
        unet = peer_unet_sd1(SD1, 8, 32)
        ours = opened(tmp_path, unet, vae := vae_of(4), scheduler, "clip")
        settings = Settings("", "", 16, 24, steps=3, cfg_scale=4.0, like="diffusers", schedule="trailing")
        begin = begun(ours, settings)
        cond, uncond = draw((1, 7, 24), 2), draw((1, 7, 24), 3)
        pipe = StableDiffusionPipeline(vae, None, None, unet, scheduler, None, None, requires_safety_checker=False)
        theirs = answer(
            pipe, prompt_embeds=of(cond), negative_prompt_embeds=of(uncond), latents=of(begin.noise),
            num_inference_steps=3, guidance_scale=4.0, width=16, height=24,
        )  # fmt: skip
    agree(drawn(ours, settings, Conditioning(Condition(cond), Condition(uncond)), begin), theirs)


def test_a_latent_that_is_odd_on_its_way_down(tmp_path):
    """24 x 40 pixels are 20 x 12 latents, then 10 x 6, 5 x 3 and 3 x 2: on the way up 5 x 3 again."""
    with float64_throughout():
        scheduler = euler(timestep_spacing="leading")
        unet = peer_unet_sd1(SD1._replace(widths=(32, 64, 64, 64)), 8, 32)
        ours = opened(tmp_path, unet, vae := vae_of(4), scheduler, "clip")
        settings = Settings("", "", 24, 40, steps=2, cfg_scale=4.0, like="diffusers")
        begin = begun(ours, settings)
        cond, uncond = draw((1, 7, 24), 2), draw((1, 7, 24), 3)
        pipe = StableDiffusionPipeline(vae, None, None, unet, scheduler, None, None, requires_safety_checker=False)
        theirs = answer(
            pipe, prompt_embeds=of(cond), negative_prompt_embeds=of(uncond), latents=of(begin.noise),
            num_inference_steps=2, guidance_scale=4.0, width=24, height=40,
        )  # fmt: skip
    agree(drawn(ours, settings, Conditioning(Condition(cond), Condition(uncond)), begin), theirs)


def test_flux_goes_down_to_a_size_that_it_takes(tmp_path):
    """Patches are 4 pixels wide here: of 26 x 18 pixels 24 x 16 are drawn, with a warning."""
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=False, shift=1.0)
    with float64_throughout():
        network = peer_flux(1, (16, 56, 56), False)
        ours = opened(tmp_path, network, vae := vae_of(4, NO_QUANT, **FLUX_VAE), scheduler, "clip", "t5")
        settings = Settings("", "", 26, 18, steps=2, cfg_scale=1.0, like="diffusers")
        begin = begun(ours, settings)
        text, pooled = draw((1, 7, FLUX_E), 2), draw((1, FLUX_V), 3)
        pipe = FluxPipeline(scheduler, vae, None, None, None, None, network)
        packed = FluxPipeline._pack_latents(of(begin.noise), *begin.noise.shape)
        theirs = answer(
            pipe, prompt_embeds=of(text), pooled_prompt_embeds=of(pooled), latents=packed, num_inference_steps=2,
            width=26, height=18,
        )  # fmt: skip
    conditioning = Conditioning(Condition(text, pooled), None)
    agree(drawn(ours, settings, conditioning, begin), unpacked(pipe, theirs, begin))


def test_sdxl(tmp_path):
    config = Config(UNetSize(64, (64, 128), (1,), 1, 40), [1, 2], (6, 10), 7, 56, 6)
    with float64_throughout():
        scheduler = euler(timestep_spacing="leading")
        unet = peer_unet(config)
        ours = opened(tmp_path, unet, vae := vae_of(4, scaling_factor=0.13025), scheduler, "clip", "clip_g")
        settings = Settings("", "", 24, 16, steps=3, cfg_scale=5.0, like="diffusers")
        begin = begun(ours, settings)
        texts, pooled = draw((2, 7, 40), 2), draw((2, 56), 3)
        pipe = StableDiffusionXLPipeline(vae, None, None, None, None, unet, scheduler, add_watermarker=False)
        theirs = answer(
            pipe, prompt_embeds=of(texts[:1]), negative_prompt_embeds=of(texts[1:]),
            pooled_prompt_embeds=of(pooled[:1]), negative_pooled_prompt_embeds=of(pooled[1:]),
            latents=of(begin.noise), num_inference_steps=3, guidance_scale=5.0, width=24, height=16,
        )  # fmt: skip
    made = []
    for text, one in zip(texts, pooled, strict=True):
        seen = np.ones((1, 7), np.int64)
        encoded = {
            "clip": Encoded(text[None, :, :16], None, seen),
            "clip_g": Encoded(text[None, :, 16:], one[None], seen),
        }
        prompt = EncodedPrompt(encoded, ours.denoiser.module, (16, 24), DIFFUSERS)
        made.append(ours.variant.join(prompt))
    agree(drawn(ours, settings, Conditioning(*made), begin), theirs)


@pytest.mark.parametrize("kind", ["sd3", "sd3.5-large", "sd3.5-medium"])
def test_sd3(tmp_path, kind):
    size = PeerSize(2, 24, 2, 16, 12, qk_norm=kind != "sd3", dual=(0,) if kind.endswith("medium") else ())
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        network = peer_mmdit(size)
        vae = vae_of(16, ("quant_conv.", "post_quant_conv."), scaling_factor=1.5305, shift_factor=0.0609)
        ours = opened(tmp_path, network, vae, scheduler, "clip", "clip_g", "t5")
        settings = Settings("", "", 24, 16, steps=4, cfg_scale=5.0, like="diffusers")
        begin = begun(ours, settings)
        texts, pooled = draw((2, 7, size.context_dim), 2), draw((2, size.pooled), 3)
        pipe = StableDiffusion3Pipeline(network, scheduler, vae, None, None, None, None, None, None)
        theirs = answer(
            pipe, prompt_embeds=of(texts[:1]), negative_prompt_embeds=of(texts[1:]),
            pooled_prompt_embeds=of(pooled[:1]), negative_pooled_prompt_embeds=of(pooled[1:]),
            latents=of(begin.noise), num_inference_steps=4, guidance_scale=5.0, width=24, height=16,
        )  # fmt: skip
    cond, uncond = (Condition(texts[i : i + 1], pooled[i : i + 1]) for i in range(2))
    agree(drawn(ours, settings, Conditioning(cond, uncond), begin), theirs)


FLUX_VAE: dict[str, Any] = {"scaling_factor": 0.3611, "shift_factor": 0.1159}
NO_QUANT = "quant_conv.", "post_quant_conv."


@pytest.mark.parametrize("cfg", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["dev", "schnell"])
def test_flux(tmp_path, kind, cfg):
    dev = kind == "dev"
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dev, shift=3.0 if dev else 1.0)
    with float64_throughout():
        network = peer_flux(1, (16, 56, 56), dev)
        ours = opened(tmp_path, network, vae := vae_of(4, NO_QUANT, **FLUX_VAE), scheduler, "clip", "t5")
        settings = Settings(
            "", "", 24, 16, steps=3, cfg_scale=cfg, guidance=2.75 if dev else None, like="diffusers"
        )
        begin = begun(ours, settings)
        texts, pooled = draw((2, 7, FLUX_E), 2), draw((2, FLUX_V), 3)
        pipe = FluxPipeline(scheduler, vae, None, None, None, None, network)
        packed = FluxPipeline._pack_latents(of(begin.noise), *begin.noise.shape)
        theirs = answer(
            pipe, prompt_embeds=of(texts[:1]), negative_prompt_embeds=of(texts[1:]),
            pooled_prompt_embeds=of(pooled[:1]), negative_pooled_prompt_embeds=of(pooled[1:]),
            latents=packed, num_inference_steps=3, guidance_scale=2.75, true_cfg_scale=cfg, width=24, height=16,
        )  # fmt: skip
    cond, uncond = (Condition(texts[i : i + 1], pooled[i : i + 1]) for i in range(2))
    conditioning = Conditioning(cond, None if cfg == 1 else uncond)
    agree(drawn(ours, settings, conditioning, begin), unpacked(pipe, theirs, begin))


def unpacked(pipe, theirs, begin):
    _, _, h, w = begin.noise.shape
    factor = pipe.vae_scale_factor
    return FluxPipeline._unpack_latents(theirs[0], h * factor, w * factor, factor), theirs[1]


@pytest.mark.parametrize("masks", [True, False])
def test_chroma(tmp_path, masks):
    """A mask of floats, as its own encode_prompt makes it, diffusers adds to the scores: that masks nothing."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    with float64_throughout():
        network = peer_chroma(1, (16, 56, 56), channels=4)
        ours = opened(tmp_path, network, vae := vae_of(4, NO_QUANT, **FLUX_VAE), scheduler, "t5")
        settings = Settings("", "", 24, 16, steps=3, cfg_scale=3.0, like="diffusers")
        begin = begun(ours, settings)
        texts = draw((2, 7, 11), 2)
        seen = np.arange(7) < np.array([[5], [2]])
        mask = of(seen) if masks else of(seen.astype(np.float64))
        pipe = ChromaPipeline(scheduler, vae, None, None, network)
        packed = FluxPipeline._pack_latents(of(begin.noise), *begin.noise.shape)
        theirs = answer(
            pipe, prompt_embeds=of(texts[:1]), negative_prompt_embeds=of(texts[1:]),
            prompt_attention_mask=mask[:1], negative_prompt_attention_mask=mask[1:],
            latents=packed, num_inference_steps=3, guidance_scale=3.0, width=24, height=16,
        )  # fmt: skip
    cond, uncond = (Condition(texts[i : i + 1], mask=seen[i : i + 1].astype(int)) for i in range(2))
    mine = drawn(ours, settings, Conditioning(cond, uncond), begin)
    if masks:
        agree(mine, unpacked(pipe, theirs, begin))
    else:
        assert distance(mine[0], unpacked(pipe, theirs, begin)[0]) > 1e-3


def test_zimage(tmp_path):
    """Its guidance counts from 0: g = cfg scale - 1."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    with float64_throughout():
        network = peer_zimage(1, (32, 48, 48), 2, 1)
        ours = opened(tmp_path, network, vae := vae_of(16, NO_QUANT, **FLUX_VAE), scheduler, "qwen3")
        settings = Settings("", "", 24, 16, steps=3, cfg_scale=3.5, like="diffusers")
        begin = begun(ours, settings)
        texts = [draw((9, 40), 2), draw((4, 40), 3)]
        pipe = ZImagePipeline(scheduler, vae, None, None, network)
        pipe.vae_scale_factor = 2
        theirs = answer(
            pipe, prompt_embeds=[of(texts[0])], negative_prompt_embeds=[of(texts[1])], latents=of(begin.noise),
            num_inference_steps=3, guidance_scale=2.5, width=24, height=16,
        )  # fmt: skip
    cond, uncond = (Condition(text[None]) for text in texts)
    agree(drawn(ours, settings, Conditioning(cond, uncond), begin), theirs)


@pytest.mark.parametrize("steps", [1, 3])
def test_qwen_image(tmp_path, steps):
    """True CFG with rescaled tokens; the released scheduler, whose last step above 0 is 0.02."""
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02 if steps > 1 else None
    )
    with float64_throughout():
        network = peer_qwen_image(1, (16, 56, 56))
        vae = peer_wan_vae(WanVAESize(8, (8, 16, 32, 32), 1))
        ours = opened(tmp_path, network, vae, scheduler, "qwen2_5_vl")
        schedule = None if steps > 1 else "flow_uniform"
        settings = Settings("", "", 48, 80, steps=steps, schedule=schedule, cfg_scale=4.0, like="diffusers")
        begin = begun(ours, settings)
        texts = [draw((1, 9, 40), 2), draw((1, 4, 40), 3)]
        pipe = QwenImagePipeline(scheduler, vae, None, None, network)
        theirs = answer(
            pipe, prompt_embeds=of(texts[0]), negative_prompt_embeds=of(texts[1]), num_inference_steps=steps,
            latents=pipe._pack_latents(of(begin.noise)[:, None], 1, 16, 10, 6), true_cfg_scale=4.0,
            width=48, height=80,
        )  # fmt: skip
        latents = pipe._unpack_latents(theirs[0], 80, 48, 8)[:, :, 0]
    assert pipe.vae_scale_factor == 8
    latent, picture = drawn(ours, settings, Conditioning(*map(Condition, texts)), begin)
    agree((latent, np.clip(picture, -1, 1)), (latents, theirs[1]))  # their autoencoder clips


@pytest.mark.parametrize("kind", ["klein", "dev"])
def test_flux2(tmp_path, kind):
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    dev = kind == "dev"
    with float64_throughout():
        network = peer_flux2(1, (32, 32, 32, 32), dev, channels=20)
        vae = peer_flux2_vae(Flux2VAESize(24, (24, 48), (16, 32), 1, 5), 8)
        redraw_statistics(vae, 6)
        ours = opened(tmp_path, network, vae, scheduler, "mistral" if dev else "qwen3")
        cfg = {"guidance": 3.25} if dev else {"cfg_scale": 2.5}
        settings = Settings("", "", 24, 16, steps=3, like="diffusers", **cfg)
        begin = begun(ours, settings)
        texts = draw((2, 7, 11), 2)
        negative = {} if dev else {"negative_prompt_embeds": of(texts[1:])}
        pipe = (Flux2Pipeline if dev else Flux2KleinPipeline)(scheduler, vae, None, None, network)
        theirs = answer(
            pipe, prompt_embeds=of(texts[:1]), latents=of(begin.noise), num_inference_steps=3,
            guidance_scale=3.25 if dev else 2.5, width=24, height=16, **negative,
        )  # fmt: skip
    cond, uncond = (Condition(texts[i : i + 1]) for i in range(2))
    mine = drawn(ours, settings, Conditioning(cond, None if dev else uncond), begin)
    assert distance(mine[1], theirs[1]) <= 1e-12
