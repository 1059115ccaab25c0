"""Chroma and Chroma-Radiance inside sd-cli, which needs no text encoder for them: without T5 it takes zeros.

It reads the modulation of 38 single and 19 double blocks whatever the file has, and makes its approximator 5 layers
of 5120: the trunk may be narrow.
"""

from pathlib import Path

import numpy as np

from refsd.engines.sdcpp.reach import LATENT, Call, Reach, f32, one_step, outputs, refuses_size, size
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles

_TOKENS = 256  # of zeros, where there is no T5
_MODULATIONS = 344  # 3 of a single block, 12 of a double one, 2 of the final layer
_PAIRS = 64  # of channels that turn, in a head of 128
_WAVES = 64  # of a place in a patch of Radiance


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
    """Each item is one step of a run without guidance by a negative prompt.

    Without a mask in the case the program is told to use none. It hides by -inf; Chroma's guidance, the numbers of
    the modulations, RoPE's table and `tables` are the program's.
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
    return {"out": outputs(call.program, args, items, fed=-len(own))}


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
