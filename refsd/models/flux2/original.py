"""Diffusers' transformer of FLUX.2."""

from typing import Any

from refsd.models.flux.original import one_item, picture_sizes, same_positions, times
from refsd.models.flux2.component import REFERENCES
from refsd.networks.original import Arguments, Given, diffusers, refuse, sample
from refsd.networks.torch_tokens import as_picture, first_tokens, flat, grid, joined

_PICTURES = "x", *REFERENCES
_REFERENCES_APART = 10  # FLUX.2's index of the first picture to edit; FLUX.1's is 1


def _run(model, x, params):
    pictures = [x[name] for name in _PICTURES if name in x]
    tokens = joined([flat(picture) for picture in pictures], 1)
    ids = [grid(picture, 1, (_REFERENCES_APART * k,), (0,)) for k, picture in enumerate(pictures)]
    text = ids[0].new_zeros(x["context"].shape[1], 4)
    text[:, 3] += _count_up(text, len(text))
    y = model(tokens, x["context"], x["timesteps"], joined(ids, 0), text, x.get("guidance")).sample
    return {"out": y[:, : x["x"][0, 0].numel()].transpose(1, 2).reshape(x["x"].shape)}


def _count_up(like, n):
    import torch

    return torch.arange(n, device=like.device)


def _taps(taps, x):
    return first_tokens(taps, "final_layer.linear", x["x"][0, 0].numel())


def _read(model, given: Given) -> Arguments:
    refuse(given, "joint_attention_kwargs", "kv_cache", "kv_cache_mode")
    tokens, ids, text = given["hidden_states"], one_item(given["img_ids"]), one_item(given["txt_ids"])
    places = ids.new_zeros(len(text), 4)
    places[:, 3] = ids.new_tensor(range(len(text)))
    same_positions(text, [places], "txt_ids are not 0, 1, 2, ... in the last column")
    sizes = picture_sizes(ids)
    inputs: dict[str, Any] = {"context": given["encoder_hidden_states"]}
    expected, begin = [], 0
    for name, (index, high, wide) in zip(_PICTURES, sizes, strict=False):
        part = tokens[:, begin : begin + high * wide]
        if part.shape[1] != high * wide:
            break
        inputs[name] = as_picture(part, high, wide)
        expected.append(grid(ids.new_zeros((0, 1, high, wide)), 1, (index,), (0,)))
        begin += high * wide
    same_positions(ids, expected)
    _, high, wide = sizes[0]
    inputs |= times(model, given, tokens)
    return Arguments(inputs, {}, lambda y: {"out": as_picture(sample(y)[:, : high * wide], high, wide)})


ORIGINALS = {
    "flux2": diffusers(
        "transformer", "Flux2Transformer2DModel", _run, read=_read, rounds_time=True, laid_out=_taps
    ),
}
