"""The language models of transformers' Qwen2.5-VL and Qwen3-VL."""

from refsd.networks.original import transformers


def _run(model, x, params):
    import torch

    positions = x.get("positions")
    model.config.tie_last_hidden_states = params.get("final_norm", True)
    pictures = _pictures(model, x, params)
    out = model(
        None if pictures else x["input_ids"],
        x.get("attention_mask"),
        position_ids=None if positions is None else positions.long().permute(2, 0, 1),
        output_hidden_states=True,
        use_cache=False,
        **pictures,
    )
    layers = params.get("layers") or ()
    if layers:
        return {"hidden_states": torch.cat([out.hidden_states[i] for i in layers], -1)}
    return {"last_hidden_state": out.hidden_states[-1], "penultimate": out.hidden_states[-2]}


def _pictures(model, x, params):
    """Return the further arguments that stand for pictures; only Qwen3-VL's take DeepStack's features."""
    if "pictures" not in x:
        return {}
    ids = x["input_ids"]
    places = ids == params["image_token"]
    embedded = model.embed_tokens(ids).masked_scatter(places[..., None], x["pictures"])
    more = {"visual_pos_masks": places, "deepstack_visual_embeds": [*x["deepstack"]]} if "deepstack" in x else {}
    return {"inputs_embeds": embedded, **more}


ORIGINALS = {
    "qwen2_5_vl": transformers("text_encoder", "Qwen2_5_VLTextModel", _run),
    "qwen3_vl": transformers("text_encoder", "Qwen3VLTextModel", _run),
}
