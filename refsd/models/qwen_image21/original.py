"""Diffusers' transformer of Qwen-Image 2.1, called as its pipeline calls it."""

from typing import Any

from refsd.models.flux2.component import REFERENCES
from refsd.models.qwen_image21 import PLACE
from refsd.networks.original import Arguments, Given, diffusers, refuse, sample, timesteps
from refsd.networks.torch_tokens import as_picture, flat, joined
from refsd.numerics.errors import BadInput


def _picture(tokens, H, W):
    """Drop the tokens before the last picture's. [N, S, C] -> [N, C, H, W]"""
    return as_picture(tokens[:, -H * W :], H, W)


def _run(model, x, params):
    H, W = x["x"].shape[2:]
    pictures = [*(x[name] for name in REFERENCES if name in x), x["x"]]
    words = x["context"].new_zeros(x["context"].shape[:2]).bool()
    for first, picture in zip(params.get("places", ()), pictures[:-1], strict=True):
        words[:, first : first + picture[0, 0].numel() // PLACE] = True
    y = model(
        joined([flat(picture) for picture in pictures], 1),
        x["context"],
        x["timesteps"],
        [[(1, *picture.shape[2:]) for picture in pictures]] * len(words),
        joined([words, words.new_ones(len(words), H * W // PLACE)], 1),
        x["context_mask"].bool() if "context_mask" in x else None,
    ).sample
    return {"out": _picture(y, H, W)}


def _taps(taps, x):
    drawn = x["x"][0, 0].numel()
    return {name: y[:, -drawn:] if name in ("norm_out", "proj_out") else y for name, y in taps.items()}


def _read(model, given: Given) -> Arguments:
    refuse(given, "attention_kwargs")
    if given.get("kv_cache_mode") == "cached":
        raise BadInput("the words' keys and values come from a cache: call the pipeline with use_kv_cache=False")
    tokens, context = given["hidden_states"], given["encoder_hidden_states"]
    sizes = [size[1:] for size in given["img_shapes"][0]]
    if len(sizes) > 1 + len(REFERENCES):
        raise BadInput(f"the call has {len(sizes) - 1} pictures to edit; refsd takes {len(REFERENCES)}")
    marked = given["img_mask"][0].tolist()
    *counts, drawn = (high * wide for high, wide in sizes)
    if sum(counts) + drawn != tokens.shape[1] or sum(counts) // PLACE != sum(marked[: context.shape[1]]):
        raise BadInput("the call's img_shapes do not fit its hidden_states and its img_mask")
    parts = tokens.split([high * wide for high, wide in sizes], 1)
    pictures = [_picture(part, *size) for part, size in zip(parts, sizes, strict=True)]
    inputs: dict[str, Any] = {
        "x": pictures[-1],
        "timesteps": timesteps(given, "timestep", len(tokens)).to(tokens.dtype).double(),
        "context": context,
        **dict(zip(REFERENCES, pictures[:-1], strict=False)),
    }
    mask = given.get("encoder_hidden_states_mask")
    if mask is not None:
        inputs["context_mask"] = mask.bool().long()
    places, word = [], 0
    for high, wide in sizes[:-1]:
        places.append(marked.index(True, word))
        word = places[-1] + high * wide // PLACE
    H, W = sizes[-1]
    return Arguments(inputs, {"places": places}, lambda y: {"out": _picture(sample(y), H, W)})


ORIGINALS = {
    "qwen-image21": diffusers(
        "transformer", "QwenImage21Transformer2DModel", _run, read=_read, rounds_time=True, laid_out=_taps
    ),
}
