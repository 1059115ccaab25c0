"""Diffusers' image projections of IP-Adapters."""

from pathlib import Path

from refsd.networks.original import Original


def _load(path: Path, dtype):
    """Load the projection of an IP-Adapter's file as diffusers' UNet does."""
    from diffusers.loaders.unet import UNet2DConditionLoadersMixin
    from safetensors.torch import load_file

    part = "image_proj."
    weights = {name.removeprefix(part): w for name, w in load_file(path).items() if name.startswith(part)}
    mixin = UNet2DConditionLoadersMixin()
    return mixin._convert_ip_adapter_image_proj_to_diffusers(weights, low_cpu_mem_usage=False).to(dtype)


def _run(model, x, params):
    return {"ip_tokens": model(x["embeds"] if "embeds" in x else x["penultimate"])}


ORIGINALS = {
    "ip-adapter": Original("diffusers", "ip-adapter", _load, _run, layout="ldm"),
}
