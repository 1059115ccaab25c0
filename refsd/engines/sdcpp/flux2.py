"""Run FLUX.2 inside sd-cli: klein and dev with a language model of zeros, and the autoencoder of 32 channels."""

import json
import struct
from pathlib import Path

import numpy as np

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
from refsd.engines.sdcpp.sd1 import encoded, refuses_picture
from refsd.engines.sdcpp.stand_ins import mistral, qwen3, qwen3_graph
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles
from refsd.kernels.batch_norm import batch_denorm, batch_norm

_EPS = 1e-4  # eps of the autoencoder's batch norm
_SCALE = 2 * LATENT
_TOKENS = 512  # context tokens of a prompt
_TEMPLATE = 34  # tokens of dev's template with a prompt of one token
_DTYPES = {"F32": "<f4", "F16": "<f2"}
_PAIRS = 64  # pairs of channels that RoPE rotates, in heads of width 128


def _klein_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    return [*_flags(model_files, model), "--llm", str(qwen3(folder, hidden=128))]


def _dev_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    return [*_flags(model_files, model), "--llm", str(mistral(folder, hidden=128))]


def _flags(model_files: ModelFiles, model: ModelRecipe) -> list[str]:
    tae = model_files(ModelRecipe("taef2", "f32", tiny=True), "ldm")
    return ["--diffusion-model", str(model_files(model, "ldm")), "--taesd", str(tae)]


def _klein(call: Call) -> dict[str, np.ndarray]:
    return _answer(call, qwen3_graph(_TOKENS))


def _dev(call: Call) -> dict[str, np.ndarray]:
    return _answer(call, qwen3_graph(_TEMPLATE))


def _answer(call: Call, encoder: str) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step without classifier-free guidance; sd-cli's own RoPE table stays."""
    x, context = f32(call.arrays["x"]), f32(call.arrays["context"])
    more = {"reference": f32(call.arrays["reference"])} if "reference" in call.arrays else {}
    tokens = sum(part.shape[2] * part.shape[3] for part in (x, *more.values()))
    table = np.zeros((_TOKENS + tokens, _PAIRS, 2, 2), np.float32)
    scalars = [f32(call.arrays[name]) for name in ("timesteps", "guidance") if name in call.arrays]
    items = []
    for n in range(len(x)):
        items.append((*(s[n : n + 1] for s in scalars), context[n], x[n], *(p[n] for p in more.values()), table))
    with scratch() as folder:
        args = [*call.args, *one_step(len(x)), *size(x, _SCALE)]
        args += [flag for part in more.values() for flag in picture_to_edit(folder, part, _SCALE)]
        return {"out": outputs(call, args, items, fed=-1, skip=(encoder,))}


def _vae_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    """Name a tiny klein as the denoiser, and the autoencoder under test."""
    klein = model_files(ModelRecipe("flux2-klein", "f32", tiny=True), "ldm")
    args = ["--diffusion-model", str(klein), "--llm", str(qwen3(folder, hidden=128))]
    return [*args, "--vae", str(model_files(model, "ldm"))]


def _decoder(call: Call) -> dict[str, np.ndarray]:
    """Decode each item as one picture of a batch, denormalised here as sd-cli does outside its graph."""
    z = f32(batch_denorm(call.arrays["z"].astype(np.float64), *_statistics(call), _EPS))
    args = [*call.args, *one_step(1), *size(z, _SCALE), "-b", str(len(z))]
    with scratch() as folder:
        args += ["-o", str(folder / "out.png")]
        return {"out": outputs(call, args, [(item,) for item in z], skip=(qwen3_graph(_TOKENS),))}


def _encoder(call: Call) -> dict[str, np.ndarray]:
    """Encode each item and normalise the latent, which sd-cli does outside its graph."""
    mean = encoded(call).astype(np.float64)
    return {"mean": batch_norm(mean, *_statistics(call), _EPS)}


def _statistics(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Read the running mean and variance of the packed latent's channels from the autoencoder's file."""
    path = Path(call.args[call.args.index("--vae") + 1])
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries, found = json.loads(file.read(length)), []
        for name in ("bn.running_mean", "bn.running_var"):
            begin, end = entries[name]["data_offsets"]
            file.seek(8 + length + begin)
            found.append(np.frombuffer(file.read(end - begin), _DTYPES[entries[name]["dtype"]]).astype(np.float64))
    return found[0], found[1]


def _refuses_latent(case: Case) -> str | None:
    return refuses_size(case.inputs["z"].shape, _SCALE)


_DEVIATIONS = ("sdcpp/rope-f32-angles",)
REACHES: dict[tuple[str, str], Reach] = {
    ("flux2-klein", "model/flux2"): Reach(
        _klein, refuses_context(_TOKENS, _SCALE), _klein_flags, _DEVIATIONS, tiny=True
    ),
    ("flux2-dev-narrow", "model/flux2"): Reach(_dev, refuses_context(_TOKENS, _SCALE), _dev_flags, _DEVIATIONS),
    ("flux2-vae", "model/flux2-vae-decoder"): Reach(_decoder, _refuses_latent, _vae_flags, tiny=True),
    ("flux2-vae", "model/flux2-vae-encoder"): Reach(_encoder, refuses_picture, _vae_flags),
}
