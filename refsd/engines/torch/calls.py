"""Convert a call of a diffusers or transformers module to a component's arguments: the inverse of denoisers.py.

Each reader takes the module and the call's arguments by name, and raises BadInput for what refsd does not compute.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.components.flux2 import REFERENCES
from refsd.engines.torch.denoisers import grid, unpack
from refsd.numerics.errors import BadInput

Given = Mapping[str, Any]


class Arguments(NamedTuple):
    """A component's arguments.

    inputs:  name -> torch tensor
    params:  the component's parameters
    outputs: what the module returned -> the component's outputs by name
    """

    inputs: dict[str, Any]
    params: dict[str, Any]
    outputs: Callable[[Any], dict[str, Any]]


class Reader(NamedTuple):
    """How calls of a module class are read.

    component: name in refsd/components
    read:      module, the call's arguments -> Arguments
    first:     candidate names of the submodule whose call starts the component; "": the module itself
    last:      candidate names of the submodule whose call ends it
    """

    component: str
    read: Callable[[Any, Given], Arguments]
    first: tuple[str, ...] = ("",)
    last: tuple[str, ...] = ("",)


def _refuse(given: Given, *names: str) -> None:
    for name in names:
        value = given.get(name)
        if value is not None and value is not False and not (isinstance(value, dict) and not value):
            raise BadInput(f"the call has {name}, which refsd does not compute")


def _sample(y) -> Any:
    return y[0] if isinstance(y, tuple) else y.sample


def _timesteps(given: Given, name: str, count: int):
    import torch

    return torch.as_tensor(given[name]).detach().double().cpu().reshape(-1).expand(count)


def _per_mille(t, dtype):
    """Return the time that the module effectively uses: it multiplies by 1000 in its own dtype, which may round."""
    return (t.to(dtype) * 1000).double() / 1000


_UNREAD = ("class_labels", "timestep_cond", "attention_mask", "cross_attention_kwargs")


def _unet(model, given: Given) -> Arguments:
    more = ("down_block_additional_residuals", "mid_block_additional_residual")
    _refuse(given, *_UNREAD, *more, "down_intrablock_additional_residuals", "encoder_attention_mask")
    return Arguments(_latent_and_text(model, given), {}, lambda y: {"out": _sample(y)})


def _controlnet(model, given: Given) -> Arguments:
    _refuse(given, *_UNREAD, "guess_mode")
    inputs = {**_latent_and_text(model, given), "hint": given["controlnet_cond"]}

    def outputs(y):
        down, middle = y if isinstance(y, tuple) else (y.down_block_res_samples, y.mid_block_res_sample)
        return {f"control.{i}": part for i, part in enumerate([*down, middle])}

    return Arguments(inputs, {"strength": float(given["conditioning_scale"])}, outputs)


def _latent_and_text(model, given: Given) -> dict[str, Any]:
    x = given["sample"]
    inputs = {"x": x, "timesteps": _timesteps(given, "timestep", len(x)), "context": given["encoder_hidden_states"]}
    added = given.get("added_cond_kwargs")
    if added:
        import torch

        if {*added} != {"text_embeds", "time_ids"}:
            raise BadInput(
                f"added_cond_kwargs has {', '.join(sorted(added))}; refsd computes text_embeds, time_ids"
            )
        # The projection has no weights; the module casts its output to the dtype of the text.
        sizes = model.add_time_proj(added["time_ids"].flatten()).reshape(len(x), -1)
        inputs["y"] = torch.cat([added["text_embeds"], sizes.to(added["text_embeds"].dtype)], 1)
    return inputs


def _mmdit(model, given: Given) -> Arguments:
    _refuse(given, "block_controlnet_hidden_states", "joint_attention_kwargs", "skip_layers")
    x = given["hidden_states"]
    inputs = {
        "x": x,
        "timesteps": _timesteps(given, "timestep", len(x)),
        "context": given["encoder_hidden_states"],
        "y": given["pooled_projections"],
    }
    return Arguments(inputs, {}, lambda y: {"out": _sample(y)})


def _flux(model, given: Given) -> Arguments:
    inputs, count = _packed(given)
    dtype, N = inputs["x"].dtype, len(inputs["x"])
    inputs["y"] = given["pooled_projections"]
    inputs["timesteps"] = _per_mille(_timesteps(given, "timestep", N), dtype)
    if given.get("guidance") is not None and model.config.guidance_embeds:
        inputs["guidance"] = _per_mille(_timesteps(given, "guidance", N), dtype)
    *_, H, W = inputs["x"].shape
    return Arguments(inputs, {}, lambda y: {"out": unpack(_sample(y)[:, :count], H, W)})


def _chroma(model, given: Given) -> Arguments:
    inputs, count = _packed(given)
    if "reference" in inputs:
        raise BadInput("the call has positions of several pictures; Chroma's reference takes one")
    inputs["timesteps"] = _per_mille(_timesteps(given, "timestep", len(inputs["x"])), inputs["x"].dtype)
    mask = given.get("attention_mask")
    if mask is not None:
        J = inputs["context"].shape[1]
        if not mask[:, J:].bool().all():
            raise BadInput("attention_mask hides tokens of the picture, which refsd does not compute")
        inputs["context_mask"] = mask[:, :J].bool().long()
    *_, H, W = inputs["x"].shape
    return Arguments(inputs, {}, lambda y: {"out": unpack(_sample(y)[:, :count], H, W)})


def _packed(given: Given) -> tuple[dict[str, Any], int]:
    """Return the latent, any reference latent and the text, and the number of tokens of the latent."""
    _refuse(given, "joint_attention_kwargs", "controlnet_block_samples", "controlnet_single_block_samples")
    tokens, ids, text = given["hidden_states"], _one(given["img_ids"]), _one(given["txt_ids"])
    sizes = _sizes(ids)
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
    _same_positions(ids, expected)
    return inputs, sizes[0][1] * sizes[0][2]


def _same_positions(ids, expected, wrong="img_ids are not the rows and columns of whole pictures") -> None:
    import torch

    if not expected or not torch.equal(torch.cat(expected).to(ids), ids):
        raise BadInput(wrong)


def _one(ids):
    """Return the positions of one item of the batch, on the CPU in float32."""
    return (ids[0] if ids.ndim == 3 else ids).detach().float().cpu()


def _sizes(ids) -> list[tuple[int, int, int]]:
    """Return (index, rows, columns) of each picture."""
    pictures = sorted({int(index) for index in ids[:, 0]})
    own = [(index, ids[ids[:, 0] == index]) for index in pictures]
    return [(index, int(of[:, 1].max()) + 1, int(of[:, 2].max()) + 1) for index, of in own]


def _flux2(model, given: Given) -> Arguments:
    _refuse(given, "joint_attention_kwargs")
    tokens, ids, text = given["hidden_states"], _one(given["img_ids"]), _one(given["txt_ids"])
    places = ids.new_zeros(len(text), 4)
    places[:, 3] = ids.new_tensor(range(len(text)))
    _same_positions(text, [places], "txt_ids are not 0, 1, 2, ... in the last column")
    sizes = _sizes(ids)
    inputs: dict[str, Any] = {"context": given["encoder_hidden_states"]}
    expected, begin = [], 0
    for name, (index, high, wide) in zip(("x", "reference"), sizes, strict=False):
        part = tokens[:, begin : begin + high * wide]
        if part.shape[1] != high * wide:
            break
        inputs[name] = _as_picture(part, high, wide)
        expected.append(grid(ids.new_zeros((0, 1, high, wide)), 1, (index,), (0,)))
        begin += high * wide
    _same_positions(ids, expected)
    _, high, wide = sizes[0]
    N, dtype = len(tokens), tokens.dtype
    inputs["timesteps"] = _per_mille(_timesteps(given, "timestep", N), dtype)
    if given.get("guidance") is not None and model.config.guidance_embeds:
        inputs["guidance"] = _per_mille(_timesteps(given, "guidance", N), dtype)
    return Arguments(inputs, {}, lambda y: {"out": _as_picture(_sample(y)[:, : high * wide], high, wide)})


def _as_picture(tokens, high, wide):
    """[N, H * W, C] -> [N, C, H, W]"""
    return tokens.transpose(1, 2).reshape(len(tokens), -1, high, wide)


def _zimage(model, given: Given) -> Arguments:
    import torch

    _refuse(given, "controlnet_block_samples", "siglip_feats", "image_noise_mask", "joint_attention_kwargs")
    x, captions = given["x"], given["cap_feats"]
    if isinstance(x[0], list) or len({tuple(latent.shape) for latent in x}) != 1 or x[0].shape[1] != 1:
        raise BadInput("the pictures of one call have several sizes or frames, which refsd does not compute")
    longest = max(len(caption) for caption in captions)
    padded = [torch.nn.functional.pad(caption, (0, 0, 0, longest - len(caption))) for caption in captions]
    t = given["t"]
    inputs = {
        "x": torch.stack([latent[:, 0] for latent in x]),
        "timesteps": _per_mille(t, t.dtype).cpu().reshape(-1).expand(len(x)),
        "context": torch.stack(padded),
    }
    if any(len(caption) < longest for caption in captions):
        places = torch.arange(longest)
        inputs["context_mask"] = torch.stack([(places < len(caption)).long() for caption in captions])
    return Arguments(inputs, {}, lambda y: {"out": torch.stack([latent[:, 0] for latent in _sample(y)])})


def _qwen_image(model, given: Given) -> Arguments:
    _refuse(given, "guidance", "attention_kwargs", "controlnet_block_samples", "additional_t_cond")
    tokens, sizes = given["hidden_states"], given["img_shapes"][0]
    sizes = sizes if isinstance(sizes, list) else [sizes]
    if any(frames != 1 for frames, *_ in sizes) or len(sizes) > 1 + len(REFERENCES):
        raise BadInput("img_shapes are not those of one picture and up to four references of one frame each")
    parts = tokens.split([high * wide for _, high, wide in sizes], 1)
    inputs: dict[str, Any] = {
        name: unpack(part, 2 * high, 2 * wide)
        for name, part, (_, high, wide) in zip(("x", *REFERENCES), parts, sizes, strict=False)
    }
    inputs["timesteps"] = _timesteps(given, "timestep", len(tokens)).to(tokens.dtype).double()
    inputs["context"] = given["encoder_hidden_states"]
    mask = given.get("encoder_hidden_states_mask")
    if mask is not None:
        inputs["context_mask"] = mask.bool().long()
    *_, H, W = inputs["x"].shape
    params = {"zero_cond_t": bool(model.config.zero_cond_t)}
    return Arguments(inputs, params, lambda y: {"out": unpack(_sample(y), H, W)})


def _encoder(model, given: Given) -> Arguments:
    def outputs(moments):
        mean, logvar = moments.chunk(2, dim=1)
        return {"mean": mean, "logvar": logvar}

    return Arguments({"x": next(iter(given.values()))}, {}, outputs)


def _decoder(model, given: Given) -> Arguments:
    return Arguments({"z": next(iter(given.values()))}, {}, lambda y: {"out": y})


def _clip(model, given: Given) -> Arguments:
    _refuse(given, "inputs_embeds", "position_ids")
    ids, mask = given["input_ids"], given.get("attention_mask")
    if mask is not None and not mask.bool().all():
        raise BadInput("the call has an attention_mask that hides tokens; CLIP's reference sees all")
    encoder = getattr(model, "text_model", model)
    eos = getattr(encoder, "eos_token_id", model.config.eos_token_id)
    # Old configs have eos 2; the encoder then pools at the largest id.
    params = {"eos": int(ids.max()) if eos == 2 else int(eos)}

    def outputs(y):
        pooled = y.text_embeds if hasattr(y, "text_embeds") else y.pooler_output
        return {"last_hidden_state": y.last_hidden_state, "pooled": pooled}

    return Arguments({"input_ids": ids}, params, outputs)


def _t5(model, given: Given) -> Arguments:
    _refuse(given, "inputs_embeds")
    mask = given.get("attention_mask")
    inputs = {"input_ids": given["input_ids"]} | ({} if mask is None else {"attention_mask": mask})
    return Arguments(inputs, {}, lambda y: {"last_hidden_state": y[0]})


def _language_model(model, given: Given) -> Arguments:
    _refuse(given, "inputs_embeds", "position_ids")
    cache = given.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise BadInput("the call goes on from past_key_values, which refsd does not compute")
    return _t5(model, given)


# Name of the module's class -> readers of its calls.
READERS: dict[str, tuple[Reader, ...]] = {
    "UNet2DConditionModel": (Reader("unet", _unet),),
    "ControlNetModel": (Reader("controlnet", _controlnet),),
    "SD3Transformer2DModel": (Reader("mmdit", _mmdit),),
    "FluxTransformer2DModel": (Reader("flux", _flux),),
    "ChromaTransformer2DModel": (Reader("chroma", _chroma),),
    "Flux2Transformer2DModel": (Reader("flux2", _flux2),),
    "QwenImageTransformer2DModel": (Reader("qwen-image", _qwen_image),),
    "ZImageTransformer2DModel": (Reader("zimage", _zimage),),
    "AutoencoderKL": (
        Reader("vae-encoder", _encoder, ("encoder",), ("quant_conv", "encoder")),
        Reader("vae-decoder", _decoder, ("post_quant_conv", "decoder"), ("decoder",)),
    ),
    "CLIPTextModel": (Reader("clip", _clip),),
    "CLIPTextModelWithProjection": (Reader("clip_g", _clip),),
    "T5EncoderModel": (Reader("t5", _t5),),
    "Qwen3Model": (Reader("qwen3", _language_model),),
    "MistralModel": (Reader("mistral", _language_model),),
}
