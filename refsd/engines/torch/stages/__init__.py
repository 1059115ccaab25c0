"""Stages by the packages that define them: diffusers (schedulers, guiders, ...), LyCORIS, PEFT, transformers."""

from refsd.engines.torch.stages import (
    adapter,
    calls,
    clip_tokens,
    control,
    guidance,
    latents,
    masked_step,
    noising,
    pixels,
    prediction,
    requests,
    sigmas,
    textual_inversion,
    tiles,
)
from refsd.engines.torch.stages.torch_stage import TorchStage

STAGES: dict[str, TorchStage] = {
    "stage/adapter": adapter.STAGE,
    "stage/calls": calls.STAGE,
    "stage/clip_tokens": clip_tokens.STAGE,
    "stage/control": control.STAGE,
    "stage/denoised_guidance": guidance.DENOISED,
    "stage/guidance": guidance.STAGE,
    "stage/latents": latents.STAGE,
    "stage/masked_step": masked_step.STAGE,
    "stage/noising": noising.STAGE,
    "stage/pixels": pixels.STAGE,
    "stage/prediction": prediction.STAGE,
    "stage/requests": requests.STAGE,
    "stage/sigmas": sigmas.STAGE,
    "stage/textual_inversion": textual_inversion.STAGE,
    "stage/tiles": tiles.STAGE,
}
