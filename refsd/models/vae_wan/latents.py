"""Statistics of the latents of Wan's and Qwen-Image's autoencoders, and how config.json holds them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refsd.networks.config import shown_value
from refsd.numerics.errors import BadInput

# Mean and standard deviation of each latent channel: Wan2.1's vae.py, diffusers' latents_mean and latents_std.
LATENTS_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
LATENTS_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)

# The same of Wan 2.2's: vae2_2.py.
WAN22_LATENTS_MEAN = (
    *(-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557),
    *(-0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825),
    *(-0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502),
    *(-0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230),
    *(-0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748),
    *(0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667),
)
WAN22_LATENTS_STD = (
    *(0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013),
    *(0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978),
    *(0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659),
    *(0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093),
    *(0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887),
    *(0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744),
)


def statistics(path: Path, Z: int, given: dict[str, Any]) -> dict[str, Any]:
    """Read each latent channel's mean and standard deviation; without the fields, leave them to the component."""
    read = {}
    for field in ("latents_mean", "latents_std"):
        if field not in given:
            continue
        values = given[field]
        numbers = [v for v in values if type(v) in (int, float)] if isinstance(values, list) else []
        if len(numbers) != Z or len(values) != Z or not all(map(math.isfinite, numbers)):
            raise BadInput(f"{path}: {field} is {shown_value(values)}; a list of {Z} numbers expected")
        if field == "latents_std" and min(numbers) <= 0:
            raise BadInput(f"{path}: {field} holds {min(numbers):g}; a standard deviation is above 0")
        read[field] = [float(v) for v in numbers]
    return read


def config_of(size: Any, class_name: str, means: Sequence[float], spreads: Sequence[float], **more: Any) -> dict:
    """Return the content of config.json. means, spreads: of each latent channel; more: further fields"""
    return {
        "_class_name": class_name,
        "attn_scales": [],
        "base_dim": size.channels,
        "dim_mult": [width // size.channels for width in size.widths],
        "dropout": 0.0,
        "latents_mean": list(means),
        "latents_std": list(spreads),
        "num_res_blocks": size.res_blocks,
        "temperal_downsample": list(size.halves),
        "z_dim": size.latent_channels,
        **more,
    }
