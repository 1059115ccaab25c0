"""Published files at their real size, by names and shapes that others listed: every tensor is known."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint

LISTED = np.load(Path(__file__).parents[2] / "fixtures" / "published_layouts.npz")
UNET, VAE = "model.diffusion_model.", ("VAE-v1-SD", "first_stage_model.")
SD1_TEXT = ("CLIP-v1-SD", "cond_stage_model.transformer.text_model.")
SD2_TEXT = ("CLIP-v2-SD", "cond_stage_model.model.")
SDXL_TEXT = (
    ("CLIP-v1-SD", "conditioner.embedders.0.transformer.text_model."),
    ("CLIP-XL-SD", "conditioner.embedders.1.model."),
)
# file -> family, what is listed and under which prefix, millions of parameters
FILES = {
    "v1-5": ("sd15", (("UNET-v1-SD", UNET), VAE, SD1_TEXT), {"unet": 859.52, "clip": 123.06, "vae": 83.65}),
    "v1-5-inpainting": ("sd15-inpaint", (("UNET-v1-Inpainting", UNET), VAE, SD1_TEXT), {"unet": 859.54}),
    "instruct-pix2pix": ("sd15-edit", (("UNET-v1-Pix2Pix", UNET), VAE, SD1_TEXT), {"unet": 859.53}),
    "v2-1": ("sd2", (("UNET-v2-SD", UNET), VAE, SD2_TEXT), {"unet": 865.91, "clip": 354.03}),
    "v2-inpainting": ("sd2-inpaint", (("UNET-v2-Inpainting", UNET), VAE, SD2_TEXT), {"unet": 865.93}),
    "sd_xl_base": ("sdxl", (("UNET-XL-SD", UNET), VAE, *SDXL_TEXT), {"unet": 2567.46, "clip_g": 694.66}),
    "sd_xl_refiner": (
        "sdxl-refiner",
        (("UNET-XL-Refiner", UNET), VAE, ("CLIP-XL-SD", "conditioner.embedders.0.model.")),
        {"unet": 2259.48, "clip_g": 694.66},
    ),
    "control_v11": ("parts", (("ControlNet-v1-SD", "control_model."),), {"controlnet": 361.28}),
    "flux-2-klein-9b, a block of each kind": (
        "flux2-klein",
        (("flux2_transformer_bfl_keys", ""),),
        {},
    ),
    "flux2-vae": ("parts", (("flux2_vae_bfl_keys", ""),), {"flux2-vae": 84.05}),
    "z_image_turbo, a block of each kind": (
        "zimage",
        (("z_image_transformer_comfyui_keys", ""),),
        {},
    ),
}


def sparse(path, parts, more=()):
    """A safetensors file in float16 that takes no place on the disk."""
    header, end = {}, 0
    rows = [(prefix + row, part) for part, prefix in parts for row in bytes(LISTED[part]).decode().splitlines()]
    for row in [*(row for row, _ in rows), *more]:
        name, shape = row.split(" ", 1)
        shape = json.loads(shape)
        begin, end = end, end + 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)


@pytest.mark.parametrize("file", FILES)
def test_every_tensor_has_its_place(tmp_path, file):
    family, parts, millions = FILES[file]
    sparse(tmp_path / "a.safetensors", parts)
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert checkpoint.family.name == family
    assert not checkpoint.unknown
    for component, expected in millions.items():
        weights = checkpoint.components[component].weights
        count = sum(int(np.prod(weights.shapes[name], dtype=np.int64)) for name in weights)
        assert count / 1e6 == pytest.approx(expected, rel=1e-3), component


def test_one_tensor_too_many_is_named(tmp_path):
    name = f"{UNET}input_blocks.1.0.in_layers.3.bias"
    sparse(tmp_path / "a.safetensors", FILES["v1-5"][1], [f"{name} [320]"])
    with pytest.raises(BadInput, match=re.escape(f'1 unused: unet "{name}"')):
        open_checkpoint(tmp_path / "a.safetensors")
