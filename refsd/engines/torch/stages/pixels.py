"""Pixels by diffusers' image processor."""

from collections.abc import Set
from typing import Any

import numpy as np

from refsd.engines.torch.stages.torch_stage import Params, TorchStage


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    return None if p["range"] == "-1..1" else "diffusers' image processor clips no picture of 0..1"


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers.image_processor import VaeImageProcessor
    from PIL import Image

    processor = VaeImageProcessor(vae_scale_factor=1)
    images = [Image.fromarray(one.numpy().astype(np.uint8)) for one in t["bytes"]]
    pictures = processor.postprocess(t["answer"], output_type="pil")
    return {"shown": processor.preprocess(images), "bytes": np.stack([np.asarray(one) for one in pictures])}


STAGES = {"stage/pixels": TorchStage("diffusers", _refuses, _run)}
