"""ComfyUI: conventions of its own nodes."""

from refsd.conventions.card import EngineCard
from refsd.conventions.masks import MaskCard, grey, middle_of_square
from refsd.conventions.prompts import PromptCard, negative
from refsd.conventions.sampling import Card, named, one_stream, stretched, unit_data_at_the_top
from refsd.samplers.levels import NearestLevels
from refsd.samplers.noise import TorchAvx2
from refsd.samplers.schedules import timesteps
from refsd.samplers.schedules.flow import FLOW_SCHEDULES
from refsd.tokenizers.chunking import by_parts
from refsd.tokenizers.comfyui_prompt import parse_weights
from refsd.tokenizers.emphasis import from_the_empty_prompt
from refsd.tokenizers.textual_inversion import behind_a_prefix

FLOWS = {
    "normal": FLOW_SCHEDULES["flow_linspace"],
    "sgm_uniform": FLOW_SCHEDULES["flow_sgm_uniform"],
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
)
MASKS = MaskCard(
    grey,
    middle_of_square,
    before=True,
    at_x0=True,
    after=False,
    source="ComfyUI comfy/samplers.py, KSamplerX0Inpaint; comfy/sampler_helpers.py, prepare_mask",
)

CARD = EngineCard("comfyui", SAMPLING, PROMPTS, masks=MASKS)
