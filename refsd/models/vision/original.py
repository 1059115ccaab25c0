"""Transformers' vision towers of CLIP and SigLIP."""

from refsd.networks.original import transformers


def _clip_vision(model, x, params):
    out = model(x["x"], output_hidden_states=True)
    return {
        "last_hidden_state": out.last_hidden_state,
        "penultimate": out.hidden_states[-2],
        "embeds": out.image_embeds,
    }


def _siglip(model, x, params):
    return {"last_hidden_state": model(x["x"]).last_hidden_state}


ORIGINALS = {
    "clip-vision": transformers("image_encoder", "CLIPVisionModelWithProjection", _clip_vision),
    "siglip": transformers("image_encoder", "SiglipVisionModel", _siglip),
}
