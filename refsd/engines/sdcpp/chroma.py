"""Run Chroma and Chroma-Radiance inside sd-cli, without a text encoder: sd-cli then uses a context of zeros.

sd-cli always expects the modulation of 38 single and 19 double blocks, and an approximator with 5 layers of width
5120. The width of the blocks is free, so narrow test models load.
"""

from pathlib import Path

import numpy as np

from refsd.engines.sdcpp.reach import LATENT, Call, Reach, f32, one_step, outputs, refuses_size, size
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles

_TOKENS = 256  # context tokens without T5, all zero
_MODULATIONS = 344  # 3 for each single block, 12 for each double block, 2 for the final layer
_PAIRS = 64  # pairs of channels that RoPE rotates, in heads of width 128
_WAVES = 64  # cosine features of a pixel position in a patch of Radiance


def _flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    tae = model_files(ModelRecipe("taef1", "f32", tiny=True), "ldm")
    return ["--diffusion-model", str(model_files(model, "ldm")), "--taesd", str(tae)]


def _chroma(call: Call) -> dict[str, np.ndarray]:
    return _answer(call, LATENT, patch=2)


def _radiance(patch: int):
    def answer(call: Call) -> dict[str, np.ndarray]:
        waves = np.zeros((patch * patch, _WAVES), np.float32)
        return _answer(call, 1, patch, waves)

    return answer


def _answer(call: Call, scale: int, patch: int, *tables: np.ndarray) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step of a run without classifier-free guidance.

    The mask is additive, with -inf for a hidden token; a case without a mask switches sd-cli's mask off. sd-cli's
    own values stay for Chroma's guidance, the modulation indices, the RoPE table and `tables`.
    """
    x, context, t = (f32(call.arrays[name]) for name in ("x", "context", "timesteps"))
    N, _, H, W = x.shape
    mask = call.arrays.get("context_mask")
    rotations = np.zeros((_TOKENS + H * W // patch**2, _PAIRS, 2, 2), np.float32)
    own = (np.zeros(1, np.float32), np.zeros(_MODULATIONS, np.float32), rotations, *tables)
    items = []
    for n in range(N):
        hidden = () if mask is None else (f32(np.where(mask[n] != 0, 0, -np.inf)),)
        items.append((t[n : n + 1], context[n], *hidden, x[n], *own))
    args = [*call.args, *one_step(N), *size(x, scale)]
    if mask is None:
        args.append("--chroma-disable-dit-mask")
    return {"out": outputs(call, args, items, fed=-len(own))}


def _refuses(scale: int):
    def refuses(case: Case) -> str | None:
        if case.inputs["context"].shape[1] != _TOKENS:
            return f"sd-cli without T5 makes {_TOKENS} tokens of context here"
        return refuses_size(case.inputs["x"].shape, scale)

    return refuses


_ROPE = "sdcpp/rope-f32-angles"
REACHES: dict[tuple[str, str], Reach] = {
    **{
        (family, "model/chroma"): Reach(_chroma, _refuses(LATENT), _flags, (_ROPE,))
        for family in ("chroma", "chroma-narrow")
    },
    **{
        (family, "model/chroma-radiance"): Reach(_radiance(16), _refuses(1), _flags, (_ROPE,))
        for family in ("chroma-radiance", "chroma-radiance-narrow")
    },
    ("chroma-radiance-x0-narrow", "model/chroma-radiance"): Reach(
        _radiance(32), _refuses(1), _flags, ("sdcpp/radiance-bilinear", _ROPE)
    ),
}
