"""Run sd-cli's text encoders alone, each in front of a denoiser that is loaded but not computed.

CLIP-L and bigG run for SD 3, which reads the penultimate states and the pooled vector of each. A language model
runs for Z-Image, klein or FLUX.2 dev. These read different hidden states, so the case's param `layers` selects one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.engines.sdcpp.reach import Arrays, Call, Reach, outputs
from refsd.engines.sdcpp.stand_ins import clip_g, clip_l, mmdit, zimage
from refsd.engines.sdcpp.tap import Feed, signature
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure, ModelFiles

_CLIP, _EOS = 77, 49407
_ONE_STEP = ["--cfg-scale", "1", "--steps", "1", "-W", "64", "-H", "64"]


class _Asker(NamedTuple):
    """A denoiser that reads a language model's hidden states.

    denoiser: (model files, folder) -> the denoiser's file, of the smallest size that sd-cli loads
    tae:      family of the tiny autoencoder to load with it
    tokens:   fixed length to which sd-cli pads every prompt; 0: no padding
    template: tokens that the template adds to the prompt; each " cat" in the prompt adds one more
    """

    denoiser: Callable[[ModelFiles, Path], Path]
    tae: str
    tokens: int
    template: int


def _sd3_flags(clip: str, other: str, stand_in: Callable[[Path], Path]):
    def flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
        tae = model_files(ModelRecipe("taef1", "f32", tiny=True), "ldm")
        args = ["--diffusion-model", mmdit(folder), "--taesd", tae, clip, model_files(model, "ldm")]
        return [*map(str, args), other, str(stand_in(folder))]

    return flags


def _sd3_clip(first: int) -> Callable[[Call], dict[str, np.ndarray]]:
    def answer(call: Call) -> dict[str, np.ndarray]:
        """Encode each item in a separate process, with a prompt of the item's length.

        sd-cli computes four graphs with the same inputs: CLIP-L's hidden states and pooled vector, then bigG's.
        """
        mask = np.zeros((_CLIP, _CLIP), np.float32)
        hidden, pooled = [], []
        for ids, end in zip(call.arrays["input_ids"].astype(np.int32), _ends(call.case, call.arrays), strict=True):
            feeds = [Feed((ids, mask), first + n, ids) for n in range(2)]
            args = [*call.args, *_ONE_STEP, "-p", " cat" * (end - 1)]
            kind = signature((ids, mask))
            graphs = call.program.run_tapped(args, feeds, stop=(first + 2, kind)).graphs
            found = [graph.output for graph in graphs if graph.signature == kind]
            if len(found) != first + 2:
                raise EngineFailure(f"expected {first + 2} graphs with inputs {kind}, sd-cli computed {len(found)}")
            hidden.append(found[-2])
            pooled.append(found[-1])
        return {"last_hidden_state": np.stack(hidden), "pooled": np.stack(pooled)}

    return answer


def _ends(case: Case, arrays: Arrays) -> list[int]:
    """Find the first EOS token of each row, from which the pooled vector is taken."""
    return np.argmax(arrays["input_ids"] == case.params.get("eos", _EOS), axis=1).tolist()


def _refuses_clip(case: Case) -> str | None:
    if case.params.get("clip_skip") != 2 or case.params.get("final_norm", True):
        return "sd-cli gives SD 3 the penultimate states, without the final norm"
    if case.inputs["input_ids"].shape[1] != _CLIP:
        return f"sd-cli encodes {_CLIP} tokens at a time"
    arrays = {name: tensor.values() for name, tensor in case.realize().items()}
    return None if min(_ends(case, arrays)) else "sd-cli's prompt does not end with its first token"


def _recipe(family: str, tiny=True) -> Callable[[ModelFiles, Path], Path]:
    return lambda model_files, folder: model_files(ModelRecipe(family, "f32", tiny), "ldm")


# layers whose hidden states are read -> the denoiser that reads them
_QWEN3_ASKERS = {
    (35,): _Asker(lambda model_files, folder: zimage(folder), "taef1", 0, 8),
    (9, 18, 27): _Asker(_recipe("flux2-klein"), "taef2", 512, 0),
}
_MISTRAL_ASKERS = {(10, 20, 30): _Asker(_recipe("flux2-dev-narrow", tiny=False), "taef2", 0, 33)}


def _llm(askers: dict[tuple[int, ...], _Asker]) -> Reach:
    def flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
        return ["--llm", str(model_files(model, "ldm"))]

    def answer(call: Call) -> dict[str, np.ndarray]:
        """Encode each item in a separate process, with the case's ids and mask and sd-cli's own positions."""
        asker = askers[tuple(call.case.params["layers"])]
        ids = call.arrays["input_ids"].astype(np.int32)
        N, L = ids.shape
        seen = call.arrays.get("attention_mask", np.ones((N, L)))[:, None].astype(bool)
        mask = np.where(seen & np.tri(L, dtype=bool), 0, -np.inf).astype(np.float32)
        denoiser = asker.denoiser(call.model_files, call.folder)
        tae = call.model_files(ModelRecipe(asker.tae, "f32", tiny=True), "ldm")
        args = [*call.args, "--diffusion-model", str(denoiser), "--taesd", str(tae), *_ONE_STEP]
        args += ["-p", "a" if asker.tokens else " cat" * (L - asker.template)]
        rows = [outputs(call, args, [(mask[n], ids[n], ids[n].copy())], fed=2) for n in range(N)]
        return {"hidden_states": np.concatenate(rows)}

    def refuses(case: Case) -> str | None:
        layers, L = tuple(case.params.get("layers", ())), case.inputs["input_ids"].shape[1]
        if layers not in askers:
            return f"sd-cli asks for the hidden states {' or '.join(map(str, askers))} at once, no others"
        asker = askers[layers]
        if asker.tokens and asker.tokens != L:
            return f"sd-cli's prompt makes {asker.tokens} tokens here"
        if not asker.tokens and "attention_mask" in case.inputs:
            return "sd-cli's prompt has no padding here"
        return None if asker.template < L else f"sd-cli's prompt makes more than {asker.template} tokens here"

    return Reach(answer, refuses, flags, ("sdcpp/rope-running-angles",), tiny=True)


REACHES: dict[tuple[str, str], Reach] = {
    ("clip-l", "model/clip"): Reach(_sd3_clip(0), _refuses_clip, _sd3_flags("--clip_l", "--clip_g", clip_g)),
    ("clip-g", "model/clip_g"): Reach(
        _sd3_clip(2), _refuses_clip, _sd3_flags("--clip_g", "--clip_l", clip_l), ("sdcpp/gelu-tanh",)
    ),
    ("qwen3-4b", "model/qwen3"): _llm(_QWEN3_ASKERS),
    ("qwen3-narrow", "model/qwen3"): _llm(_QWEN3_ASKERS),
    ("mistral-narrow", "model/mistral"): _llm(_MISTRAL_ASKERS),
}
