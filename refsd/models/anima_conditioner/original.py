"""Diffusers' text conditioner of Anima."""

from refsd.networks.original import diffusers


def _run(model, x, params):
    model.register_to_config(min_sequence_length=params["length"])
    masks = (x.get(name) for name in ("attention_mask", "context_mask"))
    return {"last_hidden_state": model(x["context"], x["input_ids"], *masks)}


ORIGINALS = {
    "anima-conditioner": diffusers("text_conditioner", "AnimaTextConditioner", _run),
}
