"""Diffusers' transformer of FLUX.3."""

from typing import Any

from refsd.models.flux2.component import REFERENCES
from refsd.networks.original import Arguments, Given, diffusers, per_mille, refuse, sample, timesteps
from refsd.networks.torch_tokens import as_picture, first_tokens, flat, grid, joined
from refsd.numerics.errors import BadInput

_STEP = 0.5  # distance between neighbouring rows and columns
_MODULATIONS = "early_stream_modulations.", "single_stream_modulations."


def _run(model, x, params):
    pictures = [x[name] for name in REFERENCES if name in x]
    y = model(
        flat(x["x"]),
        x["context"],
        x["timesteps"],
        _ids(x["x"]),
        _text_ids(x["context"]),
        joined([flat(one) for one in pictures], 1) if pictures else None,
        joined([_ids(one, -k) for k, one in enumerate(pictures, 1)], 0) if pictures else None,
        x.get("target_timesteps"),
    ).sample
    return {"out": as_picture(y, *x["x"].shape[2:])}


def _ids(x, word=0):
    ids = grid(x, 1, (0,), (word,))
    ids[:, 1:3] *= _STEP
    return ids


def _text_ids(context):
    ids = context.new_zeros(context.shape[1], 4)
    ids[:, 3] = ids.new_tensor(range(len(ids)))
    return ids


def _taps(taps, x):
    """Take one token of the modulations: diffusers computes the same one for each."""
    taps = {name: y[:, 0] if name.startswith(_MODULATIONS) else y for name, y in taps.items()}
    of_time = "time_in.", "ref_time_in."
    taps = {name: y.reshape(len(y), -1) if name.startswith(of_time) else y for name, y in taps.items()}
    last = "final_layer.image.adaLN_modulation.1"
    if last in taps:
        taps[last] = taps[last][:, 0]
    return first_tokens(taps, "final_layer.image.linear", x["x"][0, 0].numel())


def _read(model, given: Given) -> Arguments:
    refuse(given, "attention_kwargs")
    tokens, context = given["hidden_states"], given["encoder_hidden_states"]
    (high, wide), *others = _sizes(given["img_ids"], 0)
    if others or not _text_ids(context).equal(given["txt_ids"].to(context.dtype)):
        raise BadInput("img_ids are not those of one picture, or txt_ids are not 0, 1, 2, ... in the last column")
    inputs: dict[str, Any] = {"x": as_picture(tokens, high, wide), "context": context}
    for name, theirs in (("timesteps", "timestep"), ("target_timesteps", "target_timestep")):
        if given.get(theirs) is not None:
            inputs[name] = per_mille(timesteps(given, theirs, len(tokens)), tokens.dtype)
    if given.get("image_cond_hidden_states") is not None:
        sizes = _sizes(given["image_cond_ids"], -1)
        if len(sizes) > len(REFERENCES):
            raise BadInput(f"the call has {len(sizes)} references; refsd takes {len(REFERENCES)}")
        parts = given["image_cond_hidden_states"].split([h * w for h, w in sizes], 1)
        inputs |= {
            name: as_picture(part, *size) for name, part, size in zip(REFERENCES, parts, sizes, strict=False)
        }
    return Arguments(inputs, {}, lambda y: {"out": as_picture(sample(y), high, wide)})


def _sizes(ids, word) -> list[tuple[int, int]]:
    """Return the rows and columns of each picture, at `word`, `word` - 1, ... Raises BadInput for other ids."""
    import torch

    ids, sizes, begin = ids.float(), [], 0
    while begin < len(ids):
        mine = ids[begin:][ids[begin:, 3] == word - len(sizes)]
        high, wide = (int(mine[:, axis].max() / _STEP) + 1 if len(mine) else 0 for axis in (1, 2))
        expected = _ids(torch.empty(1, 1, high, wide, device=ids.device), word - len(sizes))
        if not high or not torch.equal(ids[begin : begin + high * wide], expected):
            raise BadInput("ids of a picture are not those that FLUX.3's pipeline gives")
        sizes, begin = [*sizes, (high, wide)], begin + high * wide
    return sizes


ORIGINALS = {
    "flux3": diffusers(
        "transformer", "Flux3Transformer2DModel", _run, read=_read, rounds_time=True, laid_out=_taps
    ),
}
