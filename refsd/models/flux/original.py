"""Diffusers' transformer of FLUX.1, called as its pipelines call it."""

from typing import Any

from refsd.networks.original import Arguments, Given, diffusers, per_mille, refuse, sample, timesteps
from refsd.networks.torch_tokens import first_tokens, grid, joined, pack, unpack
from refsd.numerics.errors import BadInput


def _run(model, x, params):
    tokens, ids = pack(x["x"]), grid(x["x"], 2, (0,))
    if "reference" in x:
        tokens = joined([tokens, pack(x["reference"])], 1)
        ids = joined([ids, grid(x["reference"], 2, (1,))], 0)
    text = ids.new_zeros(x["context"].shape[1], 3)
    y = model(tokens, x["context"], x["y"], x["timesteps"], ids, text, x.get("guidance")).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _taps(taps, x):
    """Drop the reference's tokens from the last layer: they are not part of the output."""
    *_, H, W = x["x"].shape
    return first_tokens(taps, "final_layer.linear", H * W // 4)


def _read(model, given: Given) -> Arguments:
    inputs, count = packed(given)
    inputs |= {"y": given["pooled_projections"], **times(model, given, inputs["x"])}
    *_, H, W = inputs["x"].shape
    return Arguments(inputs, {}, lambda y: {"out": unpack(sample(y)[:, :count], H, W)})


def times(model, given: Given, x) -> dict[str, Any]:
    """Return the timesteps, and the guidance if the model embeds it. x: of the call's length and dtype"""
    embedded = given.get("guidance") is not None and model.config.guidance_embeds
    names = {"timesteps": "timestep", **({"guidance": "guidance"} if embedded else {})}
    return {name: per_mille(timesteps(given, theirs, len(x)), x.dtype) for name, theirs in names.items()}


def packed(given: Given) -> tuple[dict[str, Any], int]:
    """Return the latent, any reference latent and the text, and the number of tokens of the latent."""
    refuse(given, "joint_attention_kwargs", "controlnet_block_samples", "controlnet_single_block_samples")
    tokens, ids, text = given["hidden_states"], one_item(given["img_ids"]), one_item(given["txt_ids"])
    sizes = picture_sizes(ids)
    if text.any() or len(sizes) > 2 or [index for index, *_ in sizes] != [*range(len(sizes))]:
        raise BadInput("img_ids or txt_ids are not those of one picture, one reference and a text at 0")
    expected, inputs, begin = [], {"context": given["encoder_hidden_states"]}, 0
    for name, (index, high, wide) in zip(("x", "reference"), sizes, strict=False):
        part = tokens[:, begin : begin + high * wide]
        channels = (0, tokens.shape[-1] // 4, 2 * high, 2 * wide)
        if part.shape[1] != high * wide:
            break
        inputs[name] = unpack(part, 2 * high, 2 * wide)
        expected.append(grid(ids.new_zeros(channels), 2, (index,)))
        begin += high * wide
    same_positions(ids, expected)
    return inputs, sizes[0][1] * sizes[0][2]


def same_positions(ids, expected, wrong="img_ids are not the rows and columns of whole pictures") -> None:
    import torch

    if not expected or not torch.equal(torch.cat(expected).to(ids), ids):
        raise BadInput(wrong)


def one_item(ids):
    """Return the positions of one item of the batch, on the CPU in float32."""
    return (ids[0] if ids.ndim == 3 else ids).detach().float().cpu()


def picture_sizes(ids) -> list[tuple[int, int, int]]:
    """Return (index, rows, columns) of each picture."""
    pictures = sorted({int(index) for index in ids[:, 0]})
    own = [(index, ids[ids[:, 0] == index]) for index in pictures]
    return [(index, int(of[:, 1].max()) + 1, int(of[:, 2].max()) + 1) for index, of in own]


ORIGINALS = {
    "flux": diffusers("transformer", "FluxTransformer2DModel", _run, read=_read, rounds_time=True, laid_out=_taps),
}
