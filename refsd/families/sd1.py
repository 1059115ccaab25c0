"""Stable Diffusion 1.x: a UNet conditioned on CLIP-L's hidden states; also inpaint and edit models."""

from collections.abc import Mapping

from refsd.families.family import Condition, EncodedPrompt, Family, Variant
from refsd.families.text_encoders import CLIP_L
from refsd.families.unets import SCHEDULE, UNET, is_linear, kind_of, label_channels, unet_alone, with_extra_channels
from refsd.models.clip.network import CLIP_L as CLIP_L_SIZE
from refsd.models.clip.network import CLIPSize
from refsd.models.controlnet.network import CONTROLNET_SD15, ControlNetSize
from refsd.models.ip_adapter.network import IP_ADAPTER_SD15, TINY_IP_ADAPTER
from refsd.models.unet.tensors import PIX2PIX, SD15, SD15_INPAINT, SDXS_512, TINY_SD, UNetSize
from refsd.models.vae.network import VAESize
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel, RecipePart


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    if label_channels(shapes) or is_linear(shapes):
        return None
    return f"sd15{kind_of(shapes)}", "its transformers' proj_in are convolutions"


def join(prompt: EncodedPrompt) -> Condition:
    return Condition(prompt.encoders["clip"].hidden)


SD1 = Variant(
    "sd15",
    "Stable Diffusion 1.x",
    {"clip": CLIP_L},
    join,
    SCHEDULE,
    sampler="euler_a",
    latent_format="sd",
    corrects_scheduler=True,
)

_WIDTHS = 32, 64, 128, 128
_TINY = UNetSize(32, _WIDTHS, context_dim=128)
TINY_TINY_SD = TINY_SD._replace(channels=32, widths=(32, 64, 64), context_dim=128)
# Files that make a diffusers folder a pipeline. Recipes have weights only: no tokenizer, no safety checker.
_PIPELINE_FILES = {
    "scheduler/scheduler_config.json": {
        "_class_name": "EulerDiscreteScheduler",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "num_train_timesteps": 1000,
        "prediction_type": "epsilon",
        "steps_offset": 1,
        "timestep_spacing": "linspace",
    },
    "model_index.json": {
        "_class_name": "StableDiffusionPipeline",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "EulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": [None, None],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
}
_UNET = RecipePart(SD15, _TINY, UNET)
RECIPES = {
    "sd15": RecipeModel(
        {
            "unet": _UNET,
            "vae": RecipePart(VAESize(), VAESize(32, _WIDTHS), "first_stage_model."),
            "clip": RecipePart(
                CLIP_L_SIZE, CLIPSize(hidden=128, layers=2, mlp=512), "cond_stage_model.transformer."
            ),
        },
        "sd1",
        _PIPELINE_FILES,
    ),
    "sd15-inpaint": unet_alone(SD15_INPAINT, _TINY._replace(in_channels=9), "sd1"),
    "pix2pix": unet_alone(PIX2PIX, _TINY._replace(in_channels=8), "sd1"),
    "sd15-control": RecipeModel(
        {"unet": _UNET, "controlnet": RecipePart(CONTROLNET_SD15, ControlNetSize(_TINY), "control_model.")}, "sd1"
    ),
    "sd15-ip-adapter": RecipeModel(
        {"unet": _UNET, "ip-adapter": RecipePart(IP_ADAPTER_SD15, TINY_IP_ADAPTER)}, "sd1"
    ),
    "tiny-sd": unet_alone(TINY_SD, TINY_TINY_SD, "sd1", gaps=True),
    "sdxs-512": unet_alone(SDXS_512, TINY_TINY_SD._replace(attention=(1, 2)), "sd1", gaps=True),
}

FAMILIES = (
    Family(
        "sd1",
        "2022-08",
        "unet",
        identify,
        with_extra_channels(SD1, drawn=("inpaint", "edit")),
        {"Stable Diffusion 1.x": {"unet": SD15, "clip": CLIP_L_SIZE}},
        RECIPES,
    ),
)
