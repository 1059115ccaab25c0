"""Diffusers' transformer of Qwen-Image 2.1, called as its pipeline calls it for a picture from words alone."""

from refsd.networks.original import Arguments, Given, Reader, diffusers, refuse, sample, timesteps
from refsd.networks.torch_tokens import joined
from refsd.numerics.errors import BadInput


def _picture(tokens, H, W):
    """Drop the words' tokens, which come first. [N, J + H W, C] -> [N, C, H, W]"""
    return tokens[:, -H * W :].transpose(1, 2).reshape(len(tokens), -1, H, W)


def _run(model, x, params):
    H, W = x["x"].shape[2:]
    words = x["context"].new_zeros(x["context"].shape[:2]).bool()
    y = model(
        x["x"].flatten(2).transpose(1, 2),
        x["context"],
        x["timesteps"],
        [[(1, H, W)]] * len(words),
        joined([words, ~words.new_zeros(len(words), H * W // 4)], 1),  # a slot for each 2x2 tokens
        x["context_mask"].bool() if "context_mask" in x else None,
    ).sample
    return {"out": _picture(y, H, W)}


def _taps(taps, x):
    J = x["context"].shape[1]
    return {name: y[:, J:] if name in ("norm_out", "proj_out") else y for name, y in taps.items()}


def _read(model, given: Given) -> Arguments:
    refuse(given, "attention_kwargs")
    if given.get("kv_cache_mode") == "cached":
        raise BadInput("the words' keys and values come from a cache: call the pipeline with use_kv_cache=False")
    tokens, context = given["hidden_states"], given["encoder_hidden_states"]
    sizes = given["img_shapes"][0]
    if len(sizes) != 1 or given["img_mask"][:, : context.shape[1]].any():
        raise BadInput("the call has pictures to edit, which refsd does not compute")
    H, W = sizes[0][1:]
    inputs = {
        "x": _picture(tokens, H, W),
        "timesteps": timesteps(given, "timestep", len(tokens)).to(tokens.dtype).double(),
        "context": context,
    }
    mask = given.get("encoder_hidden_states_mask")
    if mask is not None:
        inputs["context_mask"] = mask.bool().long()
    return Arguments(inputs, {}, lambda y: {"out": _picture(sample(y), H, W)})


ORIGINALS = {
    "qwen-image21": diffusers(
        "transformer", "QwenImage21Transformer2DModel", _run, rounds_time=True, laid_out=_taps
    ),
}
# Name of the module's class -> readers of its calls.
READERS = {
    "QwenImage21Transformer2DModel": (Reader("qwen-image21", _read),),
}
