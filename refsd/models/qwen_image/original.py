"""Diffusers' transformer of Qwen-Image, called as its pipelines call it."""

from typing import Any

from refsd.models.flux2.component import REFERENCES
from refsd.networks.original import Arguments, Given, diffusers, refuse, sample, timesteps
from refsd.networks.torch_tokens import first_tokens, joined, pack, stacked, unpack
from refsd.numerics.errors import BadInput


def _run(model, x, params):
    pictures = [x["x"], *(x[name] for name in REFERENCES if name in x)]
    sizes = [(1, picture.shape[2] // 2, picture.shape[3] // 2) for picture in pictures]
    tokens = joined([pack(picture) for picture in pictures], 1)
    y = model(tokens, x["context"], x.get("context_mask"), x["timesteps"], [sizes] * len(tokens)).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _run_layered(model, x, params):
    N, T, _, H, W = x["x"].shape
    pictures = [*x["x"].unbind(1), x["condition"]]
    sizes = [(1, H // 2, W // 2)] * len(pictures)
    none = x["timesteps"].new_zeros(N).long()
    y = model(
        joined([pack(picture) for picture in pictures], 1),
        x["context"],
        x.get("context_mask"),
        x["timesteps"],
        [sizes] * N,
        additional_t_cond=none,
    ).sample
    return {"out": stacked([unpack(layer, H, W) for layer in y.chunk(T + 1, 1)[:T]]).transpose(0, 1)}


def _taps(taps, x):
    *layers, H, W = x["x"].shape[1:]
    return first_tokens(taps, "proj_out", H * W // 4 * (layers[0] if len(layers) == 2 else 1))


def _read(model, given: Given) -> Arguments:
    refuse(given, "guidance", "attention_kwargs", "controlnet_block_samples", "additional_t_cond")
    tokens, sizes = given["hidden_states"], given["img_shapes"][0]
    sizes = sizes if isinstance(sizes, list) else [sizes]
    if any(frames != 1 for frames, *_ in sizes) or len(sizes) > 1 + len(REFERENCES):
        raise BadInput("img_shapes are not those of one picture and up to four references of one frame each")
    parts = tokens.split([high * wide for _, high, wide in sizes], 1)
    inputs: dict[str, Any] = {
        name: unpack(part, 2 * high, 2 * wide)
        for name, part, (_, high, wide) in zip(("x", *REFERENCES), parts, sizes, strict=False)
    }
    inputs["timesteps"] = timesteps(given, "timestep", len(tokens)).to(tokens.dtype).double()
    inputs["context"] = given["encoder_hidden_states"]
    mask = given.get("encoder_hidden_states_mask")
    if mask is not None:
        inputs["context_mask"] = mask.bool().long()
    *_, H, W = inputs["x"].shape
    params = {"zero_cond_t": bool(model.config.zero_cond_t)}
    return Arguments(inputs, params, lambda y: {"out": unpack(sample(y), H, W)})


ORIGINALS = {
    "qwen-image": diffusers(
        "transformer", "QwenImageTransformer2DModel", _run, read=_read, rounds_time=True, laid_out=_taps
    ),
    "qwen-image-layered": diffusers(
        "transformer", "QwenImageTransformer2DModel", _run_layered, rounds_time=True, laid_out=_taps
    ),
}
