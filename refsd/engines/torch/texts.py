"""Encoders of texts and pictures by transformers, and Redux and IP-Adapter by diffusers."""

from pathlib import Path

from refsd.engines.torch.model import TorchModel, transformers


def _clip(model, x, params):
    model.eos_token_id = params.get("eos", 49407)
    out = model(x["input_ids"], output_hidden_states=True)
    return {"last_hidden_state": _hidden(model, out, params), "pooled": out.pooler_output}


def _clip_g(model, x, params):
    model.text_model.eos_token_id = params.get("eos", 49407)
    out = model(x["input_ids"], output_hidden_states=True)
    return {"last_hidden_state": _hidden(model.text_model, out, params), "pooled": out.text_embeds}


def _hidden(model, out, params):
    skip = params.get("clip_skip", 1)
    if skip == 1 and params.get("final_norm", True):
        return out.last_hidden_state
    hidden = out.hidden_states[-skip]
    return model.final_layer_norm(hidden) if params.get("final_norm", True) else hidden


def _t5(model, x, params):
    return {"last_hidden_state": model(x["input_ids"], x.get("attention_mask")).last_hidden_state}


def _llm(model, x, params):
    import torch

    out = model(x["input_ids"], x.get("attention_mask"), output_hidden_states=True, use_cache=False)
    if params.get("layers"):
        return {"hidden_states": torch.cat([out.hidden_states[i] for i in params["layers"]], -1)}
    return {"last_hidden_state": out.last_hidden_state, "penultimate": out.hidden_states[-2]}


def _qwen_vl(model, x, params):
    import torch

    positions = x.get("positions")
    model.config.tie_last_hidden_states = params.get("final_norm", True)
    out = model(
        x["input_ids"],
        x.get("attention_mask"),
        position_ids=None if positions is None else positions.long().permute(2, 0, 1),
        output_hidden_states=True,
        use_cache=False,
    )
    layers = params.get("layers") or ()
    if layers:
        return {"hidden_states": torch.cat([out.hidden_states[i] for i in layers], -1)}
    return {"last_hidden_state": out.hidden_states[-1], "penultimate": out.hidden_states[-2]}


def _clip_vision(model, x, params):
    out = model(x["x"], output_hidden_states=True)
    return {
        "last_hidden_state": out.last_hidden_state,
        "penultimate": out.hidden_states[-2],
        "embeds": out.image_embeds,
    }


def _siglip(model, x, params):
    return {"last_hidden_state": model(x["x"]).last_hidden_state}


def _load_redux(path: Path, dtype):
    """Load diffusers' class, which the package does not export."""
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder

    return ReduxImageEncoder.from_pretrained(path / "image_embedder", torch_dtype=dtype, local_files_only=True)


def _load_ip_adapter(path: Path, dtype):
    """Load the projection of an IP-Adapter's file as diffusers' UNet does."""
    from diffusers.loaders.unet import UNet2DConditionLoadersMixin
    from safetensors.torch import load_file

    part = "image_proj."
    weights = {name.removeprefix(part): w for name, w in load_file(path).items() if name.startswith(part)}
    mixin = UNet2DConditionLoadersMixin()
    return mixin._convert_ip_adapter_image_proj_to_diffusers(weights, low_cpu_mem_usage=False).to(dtype)


def _ip_adapter(model, x, params):
    return {"ip_tokens": model(x["embeds"] if "embeds" in x else x["penultimate"])}


def _redux(model, x, params):
    return {"out": model(x["x"]).image_embeds}


MODELS = {
    "model/clip": transformers("text_encoder", "CLIPTextModel", _clip),
    "model/clip_g": transformers("text_encoder_2", "CLIPTextModelWithProjection", _clip_g),
    "model/t5": transformers("text_encoder_2", "T5EncoderModel", _t5),
    "model/qwen3": transformers("text_encoder", "Qwen3Model", _llm),
    "model/qwen2_5_vl": transformers("text_encoder", "Qwen2_5_VLTextModel", _qwen_vl),
    "model/qwen3_vl": transformers("text_encoder", "Qwen3VLTextModel", _qwen_vl),
    "model/mistral": transformers("text_encoder", "MistralModel", _llm),
    "model/gemma2": transformers("text_encoder", "Gemma2Model", _llm),
    "model/clip-vision": transformers("image_encoder", "CLIPVisionModelWithProjection", _clip_vision),
    "model/siglip": transformers("image_encoder", "SiglipVisionModel", _siglip),
    "model/ip-adapter": TorchModel("diffusers", "ip-adapter", _load_ip_adapter, _ip_adapter, layout="ldm"),
    "model/redux": TorchModel("diffusers", "image_embedder", _load_redux, _redux),
}
