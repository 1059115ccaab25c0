"""Transformers' language models as text encoders."""

from refsd.models.t5 import original as t5
from refsd.networks.original import Arguments, Given, refuse
from refsd.numerics.errors import BadInput


def run(model, x, params):
    import torch

    out = model(x["input_ids"], x.get("attention_mask"), output_hidden_states=True, use_cache=False)
    if params.get("layers"):
        return {"hidden_states": torch.cat([out.hidden_states[i] for i in params["layers"]], -1)}
    return {"last_hidden_state": out.last_hidden_state, "penultimate": out.hidden_states[-2]}


def read(model, given: Given) -> Arguments:
    refuse(given, "inputs_embeds", "position_ids")
    cache = given.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise BadInput("the call goes on from past_key_values, which refsd does not compute")
    return t5.read(model, given)
