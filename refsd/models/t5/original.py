"""Transformers' T5 and UMT5 encoders."""

from refsd.networks.original import Arguments, Given, refuse, transformers


def _run(model, x, params):
    return {"last_hidden_state": model(x["input_ids"], x.get("attention_mask")).last_hidden_state}


def read(model, given: Given) -> Arguments:
    refuse(given, "inputs_embeds")
    mask = given.get("attention_mask")
    inputs = {"input_ids": given["input_ids"]} | ({} if mask is None else {"attention_mask": mask})
    return Arguments(inputs, {}, lambda y: {"last_hidden_state": y[0]})


ORIGINALS = {
    "t5": transformers("text_encoder_2", ("T5EncoderModel", "UMT5EncoderModel"), _run, read=read),
}
