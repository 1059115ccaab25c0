"""The components of SD 1.x as diffusers and transformers have them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class TorchModel(NamedTuple):
    """
    package: that must be installed
    folder:  of the component, inside a diffusers folder
    load:    diffusers folder, dtype -> module
    run:     module, tensors, params -> outputs by name
    """

    package: str
    folder: str
    load: Callable[[Path, Any], Any]
    run: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


def _load_unet(folder: Path, dtype):
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=dtype, local_files_only=True)


def _unet(model, x, params):
    return {"out": model(x["x"], x["timesteps"].float(), x["context"]).sample}


def _load_vae(folder: Path, dtype):
    from diffusers import AutoencoderKL

    return AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=dtype, local_files_only=True)


def _vae_encoder(model, x, params):
    moments = model.quant_conv(model.encoder(x["x"]))
    mean, logvar = moments.chunk(2, dim=1)
    return {"mean": mean, "logvar": logvar}


def _vae_decoder(model, x, params):
    return {"out": model.decode(x["z"]).sample}


def _load_clip(folder: Path, dtype):
    from transformers import CLIPTextModel

    return CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=dtype, local_files_only=True)


def _clip(model, x, params):
    model.eos_token_id = params.get("eos", 49407)
    out = model(x["input_ids"], output_hidden_states=True)
    skip = params.get("clip_skip", 1)
    hidden = out.last_hidden_state if skip == 1 else model.final_layer_norm(out.hidden_states[-skip])
    return {"last_hidden_state": hidden, "pooled": out.pooler_output}


MODELS = {
    "model/unet": TorchModel("diffusers", "unet", _load_unet, _unet),
    "model/vae-encoder": TorchModel("diffusers", "vae", _load_vae, _vae_encoder),
    "model/vae-decoder": TorchModel("diffusers", "vae", _load_vae, _vae_decoder),
    "model/clip": TorchModel("transformers", "text_encoder", _load_clip, _clip),
}
