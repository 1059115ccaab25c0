"""Run Qwen-Image inside sd-cli: one block in full width, with a language model and an autoencoder of zeros."""

from pathlib import Path

import numpy as np

from refsd.engines.sdcpp.reach import LATENT, Call, Reach, f32, one_step, outputs, refuses_size, size
from refsd.engines.sdcpp.stand_ins import qwen2_5_vl, qwen2_5_vl_graph, wan_vae
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles
from refsd.kernels.rope import rope_angles
from refsd.models.qwen_image import AXES_DIM, THETA, centred_ids, text_ids

DROPPED = 34  # tokens of the template's beginning, whose hidden states are dropped
BEHIND = 5  # tokens of the template behind the prompt


def flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    args = ["--diffusion-model", str(model_files(model, "ldm")), "--llm", str(qwen2_5_vl(folder))]
    return [*args, "--vae", str(wan_vae(folder))]


def _answer(call: Call) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step without guidance, with a prompt as long as the case's context.

    sd-cli's graph takes timesteps 0..1000. Its table of rotations is replaced by the reference's, because it puts
    the text elsewhere: docs/findings/sdcpp-qwen-image-text-positions.md.
    """
    x, context = f32(call.arrays["x"]), f32(call.arrays["context"])
    J = context.shape[1]
    table, t = table_of(J, *x.shape[2:]), f32(1000 * call.arrays["timesteps"])
    items = [(t[n : n + 1], table, context[n], x[n]) for n in range(len(x))]
    args = [*call.args, *one_step(len(x)), *size(x, LATENT), "-p", " cat" * (J - BEHIND)]
    return {"out": outputs(call, args, items, skip=(qwen2_5_vl_graph(J + DROPPED),))}


def table_of(J: int, H: int, W: int) -> np.ndarray:
    """Return the rotations of J text tokens and a latent's tokens. -> [L, 64, 2, 2]"""
    ids = centred_ids(H, W)
    angle = rope_angles(np.concatenate([text_ids(J, ids[:, 1:].max() + 1), ids])[None], AXES_DIM, THETA)[0]
    cos, sin = np.cos(angle), np.sin(angle)
    return f32(np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2))


def _refuses(case: Case) -> str | None:
    if case.inputs.keys() - {"x", "timesteps", "context"}:
        return "sd-cli's prompt has no padding here, and its pictures to edit are not fed"
    if case.inputs["context"].shape[1] <= BEHIND:
        return f"sd-cli's prompt makes more than {BEHIND} tokens of context here"
    return refuses_size(case.inputs["x"].shape, LATENT)


REACHES: dict[tuple[str, str], Reach] = {
    ("qwen-image-block", "model/qwen-image"): Reach(_answer, _refuses, flags),
}
