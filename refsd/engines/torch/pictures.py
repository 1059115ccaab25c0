"""Autoencoders by diffusers, and ESRGAN by spandrel."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from refsd.engines.torch.model import TorchModel, diffusers
from refsd.golden.engine import EngineFailure


def _vae_encoder(model, x, params):
    moments = model.encoder(x["x"])
    if model.quant_conv is not None:
        moments = model.quant_conv(moments)
    mean, logvar = moments.chunk(2, dim=1)
    return {"mean": mean, "logvar": logvar}


def _vae_decoder(model, x, params):
    return {"out": model.decode(x["z"]).sample}


def _flux2_encoder(model, x, params):
    mean, std = _statistics(model)
    return {"mean": (_packed(model.encode(x["x"]).latent_dist.mode()) - mean) / std}


def _flux2_decoder(model, x, params):
    mean, std = _statistics(model)
    return {"out": model.decode(_unpacked(x["z"] * std + mean)).sample}


def _statistics(model):
    """Return mean and standard deviation of the latent's channels, from the BatchNorm as in Flux2Pipeline."""
    norm = model.bn
    return norm.running_mean[:, None, None], (norm.running_var + model.config.batch_norm_eps).sqrt()[:, None, None]


def _packed(z):
    N, C, H, W = z.shape
    return z.reshape(N, C, H // 2, 2, W // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(N, 4 * C, H // 2, W // 2)


def _unpacked(z):
    N, C, H, W = z.shape
    return z.reshape(N, C // 4, 2, 2, H, W).permute(0, 1, 4, 2, 5, 3).reshape(N, C // 4, 2 * H, 2 * W)


def _wan_encoder(model, x, params):
    mean, logvar = model.encode(x["x"]).latent_dist.parameters.chunk(2, dim=1)
    of_mean, std = _wan_statistics(model, x["x"])
    return {"mean": (mean - of_mean) * (1 / std), "logvar": logvar - 2 * std.log()}


def _wan_decoder(model, x, params):
    """Return the picture as the decoder gives it, chunk by chunk: diffusers clips it afterwards."""
    import torch

    mean, std = _wan_statistics(model, x["z"])
    chunks = []
    hook = model.decoder.register_forward_hook(lambda module, given, y: chunks.append(y))
    try:
        model.decode(x["z"] / (1 / std) + mean)
    finally:
        hook.remove()
    return {"out": torch.cat(chunks, 2)}


def _wan_statistics(model, like):
    """Return mean and standard deviation of the latent's channels, as in QwenImagePipeline."""
    config = model.config
    mean, std = (
        like.new_tensor(values)[:, None, None, None] for values in (config.latents_mean, config.latents_std)
    )
    return mean, std


def _wan_taps(taps, x):
    """Join the taps of each chunk of frames: diffusers calls a layer once for each."""
    import torch

    ((_, given),) = x.items()
    chunks: dict[str, list] = {}
    for name, y in taps.items():
        first, _, again = name.rpartition(".")
        chunks.setdefault(first if again.isdigit() and first in taps else name, []).append(y)
    joined = {}
    for name, parts in chunks.items():
        # A layer on pictures has the frames of a chunk in its batch.
        videos = [y if y.ndim == 5 else y.unflatten(0, (len(given), -1)).transpose(1, 2) for y in parts]
        y = torch.cat(videos, 2)
        joined[name] = y if parts[0].ndim == 5 else y.transpose(1, 2).flatten(0, 1)
    return joined


def _tae_encoder(model, x, params):
    return {"mean": model.encode(2 * x["x"] - 1).latents}


def _tae_decoder(model, x, params):
    return {"out": (model.decode(x["z"]).sample + 1) / 2}


def _tae_taps(taps, x):
    """Drop the last layer's tap: it is the output before diffusers converts it to -1..1 and rounds it."""
    last = max(taps, key=lambda name: int(name.split(".")[1]))
    return {name: y for name, y in taps.items() if name != last}


def _load_esrgan(path: Path, dtype):
    """Load spandrel's RRDBNet without importing the rest of spandrel, which needs torchvision."""
    from safetensors.torch import load_file

    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "spandrel"}
    try:
        if not before:
            spec = importlib.util.find_spec("spandrel")
            if spec is None or spec.origin is None:
                raise EngineFailure("spandrel is not installed: pip install --no-deps spandrel")
            root = Path(spec.origin).parent
            for name, folder in (("spandrel", root), ("spandrel.architectures", root / "architectures")):
                sys.modules[name] = ModuleType(name)
                sys.modules[name].__path__ = [str(folder)]
        architecture = importlib.import_module("spandrel.architectures.ESRGAN").ESRGANArch()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "spandrel" and name not in before]:
            del sys.modules[name]
    return architecture.load(load_file(path)).model.to(dtype)


def _esrgan(model, x, params):
    return {"out": model(x["x"])}


MODELS = {
    "model/vae-encoder": diffusers("vae", "AutoencoderKL", _vae_encoder),
    "model/vae-decoder": diffusers("vae", "AutoencoderKL", _vae_decoder),
    "model/flux2-vae-encoder": diffusers("vae", "AutoencoderKLFlux2", _flux2_encoder),
    "model/flux2-vae-decoder": diffusers("vae", "AutoencoderKLFlux2", _flux2_decoder),
    "model/wan-vae-encoder": diffusers("vae", "AutoencoderKLQwenImage", _wan_encoder, laid_out=_wan_taps),
    "model/wan-vae-decoder": diffusers("vae", "AutoencoderKLQwenImage", _wan_decoder, laid_out=_wan_taps),
    "model/tae-encoder": diffusers("vae", "AutoencoderTiny", _tae_encoder),
    "model/tae-decoder": diffusers("vae", "AutoencoderTiny", _tae_decoder, laid_out=_tae_taps),
    "model/esrgan": TorchModel("spandrel", "esrgan", _load_esrgan, _esrgan, layout="ldm"),
}
