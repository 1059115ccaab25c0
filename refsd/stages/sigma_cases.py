"""The runs whose noise levels engines are asked for (refsd/stages/sigmas.py)."""

from typing import Any

from refsd.samplers.schedules.flow import TERMINAL
from refsd.stages.stage import case

# The last sigma: 0, or the lowest trained level (diffusers: set_alpha_to_one false, as SD 1.5 is released; or
# final_sigmas_type "sigma_min").
ZERO, LOWEST = "zero", "lowest"


def _case(label: str, engine: str, levels: str, schedule: str, steps: int, **params: Any):
    return case("sigmas", label, engine=engine, levels=levels, schedule=schedule, steps=steps, **params)


CASES = (
    _case("sd-discrete-n7", "sdcpp", "sd", "discrete", 7),
    _case("sd-discrete-nearest-n6", "comfyui", "sd", "normal", 6),
    _case("sd-karras-n5", "k-diffusion", "sd", "karras", 5, options={"rho": 7.0}),
    _case("sd-karras-nearest-n5", "forge", "sd", "karras", 5),
    # Its last three timesteps are 1, 1 and 0.
    _case("sd-karras-nearest-n45", "forge", "sd", "karras", 45),
    _case("sd-exponential-n6", "a1111", "sd", "exponential", 6),
    _case("sd-sgm-uniform-n7", "comfyui", "sd", "sgm_uniform", 7),
    _case("sd-simple-n6", "comfyui", "sd", "simple", 6),
    _case("sd-ddim-uniform-n7", "comfyui", "sd", "ddim_uniform", 7),
    _case("sd-beta-n9", "comfyui", "sd", "beta", 9, options={"alpha": 0.6}),
    _case("sd-beta-of-sigma-n8", "a1111", "sd", "beta", 8, options={"alpha": 0.6}),
    _case("sd-leading-n7", "diffusers", "sd", "leading", 7, options={"offset": 1}),
    _case("sd-leading-multistep-n7", "diffusers", "sd", "leading_multistep", 7, options={"offset": 1}),
    _case("sd-leading-lowest-n6", "diffusers", "sd", "leading", 6, options={"offset": 1}, last=LOWEST),
    _case("sd-trailing-n6", "diffusers", "sd", "trailing", 6),
    _case("sd-linspace-n7", "diffusers", "sd", "linspace", 7),
    _case("sd-linspace-multistep-n7", "diffusers", "sd", "linspace_multistep", 7),
    _case("sd-ays-n10", "sdcpp", "sd", "ays", 10),
    _case("sd-n1", "sdcpp", "sd", "discrete", 1),
    _case("sd-given-n4", "sdcpp", "sd", "given", 4, options={"sigmas": [14.5, 5.25, 1.375, 0.4375, 0.0]}),
    _case("sd-zero-snr-trailing-n5", "diffusers", "sd-zero-snr", "trailing", 5),
    _case("sd-zero-snr-normal-n6", "comfyui", "sd-zero-snr", "normal", 6),
    _case("flow-discrete-n6", "sdcpp", "flow", "discrete", 6),
    _case("flow-simple-n7", "comfyui", "flow", "simple", 7, shift=1.73),
    _case("flow-uniform-n8", "diffusers", "flow", "flow_uniform", 8),
    _case("flow-linspace-n7", "diffusers", "flow", "flow_linspace", 7, shift=2.5),
    _case("flow-below-one-n6", "diffusers", "flow", "flow_below_one", 6),
    _case("flow-sgm-uniform-n6", "comfyui", "flow", "sgm_uniform", 6, shift=5.0),
    _case("flow-ltx-n6", "comfyui", "flow", "ltx2", 6, options={"tokens": 1500, "terminal": 0.1}),
    # As users of distilled models give them: no shift moves them.
    _case("flow-given-n4", "comfyui", "flow", "given", 4, options={"sigmas": [1.0, 0.96875, 0.75, 0.375, 0.0]}),
    # diffusers shifts given ones, too.
    _case(
        *("flow-given-shifted-n4", "diffusers", "flow", "given", 4),
        shift=3.0,
        options={"sigmas": [1.0, 0.75, 0.5, 0.25, 0.0]},
    ),
    _case("flow-logit-normal-n7", "diffusers", "flow", "flow_logit_normal", 7, shift=1.6),
    # Between a flow's lowest and highest level, of which the shift moves one.
    _case("flow-karras-n6", "comfyui", "flow", "karras", 6, shift=5.0),
    _case("flux-n5", "sdcpp", "flux", "flow_uniform", 5, tokens=3072),
    _case("flux-simple-n6", "comfyui", "flux", "simple", 6, tokens=1024),
    # Trained without a shift.
    _case("flux-schnell-n4", "diffusers", "flux-schnell", "flow_uniform", 4),
    _case("flux2-n7", "diffusers", "flux2", "flow_uniform", 7, tokens=3072),
    _case("flux2-large-n7", "diffusers", "flux2", "flow_uniform", 7, tokens=8192),
    _case(
        *("qwen-image-n6", "diffusers", "qwen-image", "flow_terminal", 6),
        tokens=3072,
        options={"terminal": TERMINAL},
    ),
    _case("edm-karras-n6", "comfyui", "edm", "karras", 6),
    _case("edm-discrete-n5", "sdcpp", "edm", "discrete", 5),
    _case("strength-sdcpp-n7", "sdcpp", "sd", "discrete", 7, strength=0.6),
    _case("strength-a1111-n7", "a1111", "sd", "karras", 7, strength=0.6),
    _case("strength-comfyui-n7", "comfyui", "sd", "normal", 7, strength=0.6),
    _case("strength-diffusers-n7", "diffusers", "sd", "leading", 7, strength=0.6, options={"offset": 1}),
    _case("strength-diffusers-flow-n7", "diffusers", "flow", "flow_uniform", 7, strength=0.6),
    # Near 1 rules of rounding differ: 8 or 9 of 9 steps.
    _case("strength-sdcpp-most-n9", "sdcpp", "sd", "discrete", 9, strength=0.97),
    _case("strength-a1111-most-n9", "a1111", "sd", "karras", 9, strength=0.97),
    _case("strength-comfyui-most-n9", "comfyui", "sd", "normal", 9, strength=0.97),
    _case("strength-diffusers-most-n9", "diffusers", "sd", "leading", 9, strength=0.97, options={"offset": 1}),
    _case("strength-diffusers-flow-most-n9", "diffusers", "flow", "flow_uniform", 9, strength=0.97),
)
