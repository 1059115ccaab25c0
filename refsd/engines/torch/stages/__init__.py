"""Stages by the code that defines them: diffusers' schedulers, guiders and processors, LyCORIS, transformers."""

from refsd.engines.torch.stages import adapter, clip_tokens, guidance, noising, pixels, prediction, sigmas, tiles
from refsd.engines.torch.stages.torch_stage import TorchStage

STAGES: dict[str, TorchStage] = {
    "stage/adapter": adapter.STAGE,
    "stage/clip_tokens": clip_tokens.STAGE,
    "stage/denoised_guidance": guidance.DENOISED,
    "stage/guidance": guidance.STAGE,
    "stage/noising": noising.STAGE,
    "stage/pixels": pixels.STAGE,
    "stage/prediction": prediction.STAGE,
    "stage/sigmas": sigmas.STAGE,
    "stage/tiles": tiles.STAGE,
}
