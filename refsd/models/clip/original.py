"""Transformers' CLIP text encoders."""

from refsd.networks.original import Arguments, Given, refuse, transformers
from refsd.numerics.errors import BadInput


def _run(model, x, params):
    model.eos_token_id = params.get("eos", 49407)
    out = model(x["input_ids"], output_hidden_states=True)
    return {"last_hidden_state": _hidden(model, out, params), "pooled": out.pooler_output}


def _run_projected(model, x, params):
    model.text_model.eos_token_id = params.get("eos", 49407)
    out = model(x["input_ids"], output_hidden_states=True)
    return {"last_hidden_state": _hidden(model.text_model, out, params), "pooled": out.text_embeds}


def _hidden(model, out, params):
    skip = params.get("clip_skip", 1)
    if skip == 1 and params.get("final_norm", True):
        return out.last_hidden_state
    hidden = out.hidden_states[-skip]
    return model.final_layer_norm(hidden) if params.get("final_norm", True) else hidden


def _read(model, given: Given) -> Arguments:
    refuse(given, "inputs_embeds", "position_ids")
    ids, mask = given["input_ids"], given.get("attention_mask")
    if mask is not None and not mask.bool().all():
        raise BadInput("the call has an attention_mask that hides tokens; CLIP's reference sees all")
    encoder = getattr(model, "text_model", model)
    eos = getattr(encoder, "eos_token_id", model.config.eos_token_id)
    # Old configs have eos 2; the encoder then pools at the largest id.
    params = {"eos": int(ids.max()) if eos == 2 else int(eos)}

    def outputs(y):
        pooled = y.text_embeds if hasattr(y, "text_embeds") else y.pooler_output
        return {"last_hidden_state": y.last_hidden_state, "pooled": pooled}

    return Arguments({"input_ids": ids}, params, outputs)


ORIGINALS = {
    "clip": transformers("text_encoder", "CLIPTextModel", _run, read=_read),
    "clip_g": transformers("text_encoder_2", "CLIPTextModelWithProjection", _run_projected, read=_read),
}
