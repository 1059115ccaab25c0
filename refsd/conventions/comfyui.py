"""ComfyUI: conventions of its own nodes."""

from dataclasses import replace
from typing import Any

from refsd.conventions import sdcpp
from refsd.conventions.card import EngineCard, cards
from refsd.conventions.masks import MaskCard, grey, middle_of_square
from refsd.conventions.prompts import PromptCard, negative
from refsd.conventions.sampling import BROWNIAN, Card, named, one_stream, stretched, unit_data_at_the_top
from refsd.samplers.dpmpp_2s_ancestral import middle_below_one
from refsd.samplers.flow_time import OPENING, exploding
from refsd.samplers.levels import NearestLevels, shift_snr
from refsd.samplers.noise import TorchAvx2
from refsd.samplers.sa_solver import tau_between
from refsd.samplers.schedules import timesteps
from refsd.samplers.schedules.flow import FLOW_SCHEDULES, flow_logit_normal
from refsd.tokenizers.chunking import by_parts
from refsd.tokenizers.comfyui_prompt import parse_weights
from refsd.tokenizers.emphasis import from_the_empty_prompt
from refsd.tokenizers.textual_inversion import behind_a_prefix


def flow_ending(sampler: str, sigma: float) -> float:
    """Return 1 / (1 - sigma): the picture's share is made whole. UniPC overwrites a last sigma of 0 by 0.001.

    Source: ComfyUI comfy/model_sampling.py, CONST.inverse_noise_scaling; comfy/extra_samplers/uni_pc.py.
    """
    last = 1e-3 if sampler in ("uni_pc", "uni_pc_bh2") and sigma == 0 else sigma
    return 1 / (1 - last) if last < 1 else 1.0


def flow_options(shift: float) -> dict[str, Any]:
    """Return where a first sigma of 1 goes, when SA-Solver adds noise, and DPM-Solver++(2S)'s middle.

    Source: ComfyUI comfy/k_diffusion/sampling.py, with percent_to_sigma of comfy/model_sampling.py.
    """
    high, low = (exploding(shift_snr(share, shift)) for share in (0.8, 0.2))
    return {
        "opening": shift_snr(OPENING, shift),
        "tau": tau_between(high, low),
        "middle": middle_below_one,
    }


FLOWS = {
    "normal": FLOW_SCHEDULES["flow_linspace"],
    "sgm_uniform": FLOW_SCHEDULES["flow_sgm_uniform"],
    "flow_logit_normal": lambda n, levels: flow_logit_normal(n, levels.shift, 1.5 if n == 48 else 1.75),  # presets
}
SAMPLING = Card(
    "comfyui",
    "torch's CPU generator",
    one_stream(TorchAvx2),
    NearestLevels,
    named(
        *(
            "karras",
            "exponential",
            "sgm_uniform",
            "simple",
            "ddim_uniform",
            "beta",
            "linear_quadratic",
            "kl_optimal",
        ),
        normal=timesteps.discrete,
    ),
    "normal",
    unit_data_at_the_top,
    stretched,
    frozenset({"dpm2", "dpm2_a", "uni_pc", "uni_pc_bh2"}),
    source="ComfyUI comfy/samplers.py, comfy/sample.py, comfy/model_sampling.py",
    of_flows=FLOWS,
    no_signal=4.8973451890853435e-08,
)
PROMPTS = PromptCard(
    "comfyui",
    parse_weights,
    by_parts,
    from_the_empty_prompt,
    negative,
    behind_a_prefix,
    "ComfyUI comfy/sd1_clip.py, nodes.py",
    joins=False,
)
MASKS = MaskCard(
    grey,
    middle_of_square,
    before=True,
    at_x0=True,
    after=False,
    source="ComfyUI comfy/samplers.py, KSamplerX0Inpaint; comfy/sampler_helpers.py, prepare_mask",
)

# KSampler's samplers of which refsd has the algorithm, but for CFG++.
_SAME = (
    *("euler", "euler_a", "heun", "heunpp2", "dpm2", "dpm2_a", "dpm++2s_a", "dpm++sde", "dpm++2m", "dpm++2m_sde"),
    *("dpm++2m_sde_heun", "dpm++3m_sde", "ddpm", "lcm", "res_multistep", "res_multistep_a", "euler_ge", "er_sde"),
    *("seeds_2", "seeds_3", "sa_solver", "sa_solver_pece"),
)
SAMPLERS = {name: name for name in _SAME} | {
    "lms": "lms_to_denoised",
    "ipndm": "ipndm_to_denoised",
    "ipndm_v": "ipndm_v_published",
    "deis": "deis_tab",
    "uni_pc": "uni_pc_to_thousandth",
    "uni_pc_bh2": "uni_pc_bh2_to_thousandth",
}
# The default workflow: EmptyLatentImage, CLIPTextEncode, KSampler, VAEDecode; with a picture VAEEncode and
# SetLatentNoiseMask. Sources: ComfyUI nodes.py; comfy/sample.py; comfy/samplers.py; comfy/sdxl_clip.py;
# comfy/model_base.py, SDXL.encode_adm; comfy/ldm/models/autoencoder.py, DiagonalGaussianRegularizer;
# comfy/k_diffusion/sampling.py, default_noise_sampler, on a GPU. Of transformers the workflows with
# EmptySD3LatentImage, without ModelSampling nodes but for Chroma's; of FLUX.2 that with Flux2Scheduler. Qwen-Image
# 2.1 is younger than the code that was run: of it text_encoders/qwen_image21.py, supported_models.py were read.
# Fields that are not named concern models that it does not draw here.
PICTURES = replace(
    sdcpp.PICTURES,
    name="comfyui",
    family_rows="comfyui",
    **cards(SAMPLING, PROMPTS, MASKS),
    draws=("sd15", "sd2", "sdxl"),
    pads_patches=False,
    weighs_together=False,
    zeros_empty=False,
    unet_multiple=1,
    rounds_size_up=False,
    rounds_size_down=True,
    cfg_scale=8.0,
    sampler="euler",
    samplers=SAMPLERS,
    brownian=frozenset({*BROWNIAN, "dpm++2m_sde"}),
    sampler_schedules={},
    schedules=SAMPLING.schedules,
    flow_ending=flow_ending,
    flow_options=flow_options,
    hires_truncation=None,
    rng="cpu",
    step_rng="nv",
    step_seed=1,
    whole_batch=True,
    draws_init=False,
)

CARD = EngineCard("comfyui", SAMPLING, PROMPTS, PICTURES, MASKS)
