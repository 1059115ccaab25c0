"""Run Flux, Z-Image, SD 3, T5, ESRGAN and Flux's autoencoders inside sd-cli, each network alone.

sd-cli requires text encoders on its command line. It gets files of zeros, and the case's context replaces their
output.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from refsd.engines.sdcpp.reach import (
    LATENT,
    Call,
    Reach,
    f32,
    one_step,
    outputs,
    picture_to_edit,
    refuses_context,
    refuses_size,
    scratch,
    size,
)
from refsd.engines.sdcpp.sd1 import encoded, refuses_latent, refuses_picture, vae_decoder
from refsd.engines.sdcpp.stand_ins import CLIP_L_GRAPH, clip_g, clip_l, qwen3, qwen3_graph
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles

_CHUNK = 256  # context tokens of a Flux prompt
_CLIP = 77  # context tokens of an SD 3 prompt for CLIP, and as many for T5
_TEMPLATE = 8  # tokens of Z-Image's template around the prompt
_PAIRS = 64  # pairs of channels that RoPE rotates, in heads of width 128
_MULTIPLE = 32  # Z-Image pads both token streams to a multiple of this


def _patches(x: np.ndarray) -> int:
    """Count the 2x2 patches of latents [N, C, H, W]; sd-cli pads odd sides with zeros."""
    return -(-x.shape[2] // 2) * -(-x.shape[3] // 2)


def _flux_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    tae = model_files(ModelRecipe("taef1", "f32", tiny=True), "ldm")
    args = ["--diffusion-model", str(model_files(model, "ldm")), "--clip_l", str(clip_l(folder))]
    return [*args, "--taesd", str(tae)]


def _flux(call: Call) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step without classifier-free guidance; sd-cli's own RoPE table stays."""
    N = len(call.arrays["x"])
    x, condition = np.split(f32(call.arrays["x"]), [16], axis=1)
    more = {"condition": condition} if condition.shape[1] else {}
    if "reference" in call.arrays:
        more["reference"] = f32(call.arrays["reference"])
    tokens = sum(_patches(part) for part in (x, more.get("reference", x[..., :0])))
    table = np.zeros((_CHUNK + tokens, _PAIRS, 2, 2), np.float32)
    scalars = [f32(call.arrays[name]) for name in ("timesteps", "guidance") if name in call.arrays]
    items = []
    for n in range(N):
        own = [s[n : n + 1] for s in scalars] + [f32(call.arrays[name][n]) for name in ("context", "y")]
        items.append((*own, x[n], *(part[n] for part in more.values()), table))
    with scratch() as folder:
        args = [*call.args, *one_step(N), *size(x, LATENT)]
        if "reference" in more:
            args += picture_to_edit(folder, more["reference"], LATENT)
        return {"out": outputs(call, args, items, fed=-1, skip=(CLIP_L_GRAPH,))}


def _zimage_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    tae = model_files(ModelRecipe("taef1", "f32", tiny=True), "ldm")
    args = ["--diffusion-model", str(model_files(model, "ldm")), "--llm", str(qwen3(folder, hidden=2560))]
    return [*args, "--taesd", str(tae)]


def _zimage(call: Call) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step without guidance, with a prompt as long as the case's context.

    sd-cli's graph takes timesteps 0..1000 and returns the negated velocity; both are converted here.
    """
    x, context = f32(call.arrays["x"]), f32(call.arrays["context"])
    J = context.shape[1]
    tokens = -(-J // _MULTIPLE) * _MULTIPLE + -(-_patches(x) // _MULTIPLE) * _MULTIPLE
    table = np.zeros((tokens, _PAIRS, 2, 2), np.float32)
    t = f32(1000 * call.arrays["timesteps"])
    items = [(t[n : n + 1], context[n], x[n], table) for n in range(len(x))]
    args = [*call.args, *one_step(len(x)), *size(x, LATENT), "-p", " cat" * (J - _TEMPLATE)]
    return {"out": -outputs(call, args, items, fed=-1, skip=(qwen3_graph(J),))}


def _refuses_zimage(case: Case) -> str | None:
    if "context_mask" in case.inputs:
        return "sd-cli's prompt has no padding here"
    if case.inputs["context"].shape[1] <= _TEMPLATE:
        return f"sd-cli's prompt makes more than {_TEMPLATE} tokens of context here"
    return refuses_size(case.inputs["x"].shape, LATENT)


def _beside_flux(flag: str) -> Callable[[ModelFiles, ModelRecipe, Path], list[str]]:
    """Name a tiny Flux as the denoiser, and the network under test: an autoencoder of 16 channels, or T5."""

    def flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
        flux = _flux_flags(model_files, ModelRecipe("flux-schnell", "f16", tiny=True), folder)
        return [*(flux if flag == "--t5xxl" else flux[:-2]), flag, str(model_files(model, "ldm"))]

    return flags


def _esrgan_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    return ["-M", "upscale", "--upscale-model", str(model_files(model, "ldm"))]


def _esrgan(call: Call) -> dict[str, np.ndarray]:
    """Upscale each item in a separate process."""
    answers = []
    for x in call.arrays["x"]:
        with scratch() as folder:
            picture = folder / "in.png"
            Image.new("RGB", x.shape[:0:-1]).save(picture)
            args = [*call.args, "-i", str(picture), "-o", str(folder / "out.png")]
            answers.append(outputs(call, args, [(f32(x),)])[0])
    return {"out": np.stack(answers)}


def _mmdit_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    """Name both CLIPs: with only one, sd-cli aborts when it joins a pooled vector with zeros of another rank."""
    return [*_flux_flags(model_files, model, folder), "--clip_g", str(clip_g(folder))]


def _mmdit(call: Call) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step without guidance; timesteps are 0..1000, as in the original."""
    x = f32(call.arrays["x"])
    rows = zip(*(f32(call.arrays[name]) for name in ("timesteps", "context", "y")), x, strict=True)
    items = [(f32(t).reshape(1), context, y, item) for t, context, y, item in rows]
    args = [*call.args, *one_step(len(x)), *size(x, LATENT)]
    return {"out": outputs(call, args, items, skip=(CLIP_L_GRAPH,))}


def _t5(call: Call) -> dict[str, np.ndarray]:
    """Encode each item in a separate process; sd-cli's own table of relative positions stays."""
    table = np.zeros((_CHUNK, _CHUNK), np.int32)
    args = [*call.args, *one_step(1), "-W", "64", "-H", "64"]
    ids = call.arrays["input_ids"].astype(np.int32)
    rows = [outputs(call, args, [(row, table)], fed=1, skip=(CLIP_L_GRAPH,)) for row in ids]
    return {"last_hidden_state": np.concatenate(rows)}


def _refuses_t5(case: Case) -> str | None:
    if "attention_mask" in case.inputs:
        return "sd-cli's prompt shows its padding here"
    return None if case.inputs["input_ids"].shape[1] == _CHUNK else f"sd-cli encodes {_CHUNK} tokens at a time"


REACHES: dict[tuple[str, str], Reach] = {
    **{
        (family, "model/flux"): Reach(
            _flux, refuses_context(_CHUNK, LATENT), _flux_flags, ("sdcpp/rope-f32-angles",), tiny=True
        )
        for family in ("flux-dev", "flux-schnell", "flux-fill", "flux-control")
    },
    ("zimage", "model/zimage"): Reach(
        _zimage, _refuses_zimage, _zimage_flags, ("sdcpp/zimage-qk-norm-eps", "sdcpp/rope-f32-angles")
    ),
    **{
        (family, "model/mmdit"): Reach(_mmdit, refuses_context(2 * _CLIP, LATENT), _mmdit_flags)
        for family in ("sd3-medium", "sd35-medium", "sd35-large", "sd35-large-narrow")
    },
    ("t5xxl", "model/t5"): Reach(_t5, _refuses_t5, _beside_flux("--t5xxl")),
    ("taef1", "model/tae-decoder"): Reach(vae_decoder, refuses_latent, _beside_flux("--taesd"), tiny=True),
    ("taef1", "model/tae-encoder"): Reach(
        lambda call: {"mean": encoded(call)}, refuses_picture, _beside_flux("--taesd"), tiny=True
    ),
    ("flux-vae", "model/vae-decoder"): Reach(vae_decoder, refuses_latent, _beside_flux("--vae"), tiny=True),
    ("esrgan", "model/esrgan"): Reach(_esrgan, lambda case: None, _esrgan_flags, tiny=True),
}
