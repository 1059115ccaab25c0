"""The language models of transformers' Qwen2.5-VL and Qwen3-VL."""

from refsd.networks.original import transformers


def _run(model, x, params):
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


ORIGINALS = {
    "qwen2_5_vl": transformers("text_encoder", "Qwen2_5_VLTextModel", _run),
    "qwen3_vl": transformers("text_encoder", "Qwen3VLTextModel", _run),
}
