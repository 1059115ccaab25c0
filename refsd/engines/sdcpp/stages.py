"""Stages as sd-cli computes them, read from what enters and leaves its graphs: token ids, weights of words, sigmas.

All of them on the full SD 1.5, the smallest checkpoint of SD 1 that sd-cli loads.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.reach import scratch
from refsd.engines.sdcpp.stand_ins import CLIP_L_GRAPH
from refsd.engines.sdcpp.tap import Graph
from refsd.golden.case import ModelRecipe
from refsd.golden.engine import EngineFailure, ModelFiles
from refsd.models.vae.latents import LATENT_SCALES

_MODEL = ModelRecipe("sd15", "f16")
_LENGTH, _SIDE = 77, 64
_LATENT = (4, _SIDE // 8, _SIDE // 8)
_GUESSES = np.geomspace(1e-3, 200, 400)  # to begin the search for a sigma
_ROUNDS = 30

Params = Mapping[str, Any]
Outputs = dict[str, np.ndarray]


class SdcppStage(NamedTuple):
    """
    refuses: parameters with defaults -> why sd-cli does not show it; None: it does
    run:     program, flags that name the checkpoint, parameters -> outputs
    """

    refuses: Callable[[Params], str | None]
    run: Callable[[Program, list[str], Params], Outputs]


def refuses(op: str, params: Params) -> str | None:
    if op not in STAGES:
        return f"sd-cli does not expose {op}; of the stages it answers {', '.join(STAGES)}"
    return STAGES[op].refuses(params)


def run(program: Program, model_files: ModelFiles, op: str, params: Params) -> Outputs:
    """Raises EngineFailure."""
    return STAGES[op].run(program, ["-m", str(model_files(_MODEL, "ldm"))], params)


def _drawn(program: Program, args: Sequence[str]) -> list[Graph]:
    small = ["--cfg-scale", "1", "-W", str(_SIDE), "-H", str(_SIDE)]
    return program.run_tapped([*args, *small]).graphs


# --- prompts ---


def _refuses_prompt(params: Params) -> str | None:
    if params["engine"] != "sdcpp":
        return f"sd-cli does not read prompts as {params['engine']} does"
    alone = params["family"] == "sd1" and params["encoder"] == "clip"
    return None if alone else "sd-cli is asked for the tokens of SD 1's CLIP alone"


def _prompt(program: Program, args: list[str], params: Params) -> Outputs:
    """The ids are CLIP's input. A weight is what the UNet is given of a token's hidden state, as a share of BOS's.

    sd-cli multiplies each hidden state by its token's weight, and then all of a chunk by one factor, which keeps
    their mean; BOS has the weight 1.
    """
    graphs = _drawn(program, [*args, "-p", params["prompt"], "--steps", "1", "--sampling-method", "euler"])
    chunks = [graph for graph in graphs if graph.signature == CLIP_L_GRAPH]
    calls = _calls(graphs)
    if not chunks or not calls:
        raise EngineFailure("sd-cli computed no graph of CLIP-L, or none of the UNet")
    ids = np.stack([next(x for x in graph.inputs if x.dtype.kind == "i") for graph in chunks])
    hidden = np.stack([graph.output for graph in chunks]).astype(np.float64)
    given = calls[0].context.astype(np.float64)
    if given.size != hidden.size:
        raise EngineFailure(f"the UNet is given {len(given)} tokens, and CLIP made {hidden.shape[0]} chunks")
    share = (given.reshape(hidden.shape) * hidden).sum(-1) / (hidden * hidden).sum(-1)
    return {"ids": ids, "weights": (share / share[:, :1]).astype(np.float32)}


# --- levels ---


class _Step(NamedTuple):
    """A call of the UNet: its inputs, and what it answers."""

    t: float
    context: np.ndarray
    x: np.ndarray
    eps: np.ndarray


def _calls(graphs: Sequence[Graph]) -> list[_Step]:
    found = []
    for graph in graphs:
        by_shape = {x.shape: x for x in graph.inputs}
        if len(graph.inputs) == 3 and _LATENT in by_shape and (1,) in by_shape:
            (context,) = (x for x in graph.inputs if x.shape not in (_LATENT, (1,)))
            t = float(by_shape[1,][0])
            found.append(_Step(t, context, by_shape[_LATENT].astype(np.float64), graph.output.astype(np.float64)))
    return found


def _refuses_sigmas(params: Params) -> str | None:
    if params["engine"] != "sdcpp":
        return f"sd-cli does not follow {params['engine']}'s convention"
    return None if params["levels"] == "sd" else "sd-cli is asked for the levels of SD alone"


def _sigmas(program: Program, args: list[str], params: Params) -> Outputs:
    """The timesteps are the UNet's input. The sigmas are solved for, from the last one on.

    The UNet's input is x / sqrt(sigma^2 + 1), and Euler's step x + eps (sigma_next - sigma). The last latent is the
    autoencoder's input, and the last sigma is taken to be 0: the residual of the first equation tells if it is not.
    """
    wanted = ["--scheduler", params["schedule"], "--steps", str(params["steps"]), "--sampling-method", "euler"]
    if params["schedule"] == "given":
        wanted[:2] = ["--sigmas", ",".join(map(str, params["options"]["sigmas"]))]
    with scratch() as folder:
        if params["strength"] != 1:
            picture = Path(folder) / "in.png"
            Image.new("RGB", (_SIDE, _SIDE), (90, 120, 60)).save(picture)
            wanted += ["-i", str(picture), "--strength", str(params["strength"])]
        graphs = _drawn(program, [*args, "-p", "a", *wanted])
    calls = _calls(graphs)
    last = next((graph.inputs[0] for graph in reversed(graphs) if len(graph.inputs) == 1), None)
    if not calls or last is None or last.shape != _LATENT:
        raise EngineFailure("sd-cli computed no graph of the UNet, or none of the autoencoder")
    sigmas, after = [0.0], last.astype(np.float64) * LATENT_SCALES["sd1"].factor
    for call in reversed(calls):
        sigma = _sigma(call, after, sigmas[-1])
        sigmas.append(sigma)
        after = call.x * np.sqrt(sigma**2 + 1)
    timesteps = np.array([call.t for call in calls], np.float32)
    return {"sigmas": np.array(sigmas[::-1], np.float32), "timesteps": timesteps}


def _sigma(call: _Step, after: np.ndarray, then: float) -> float:
    """Solve x sqrt(s^2 + 1) + eps (then - s) = after for s, by least squares."""

    def residual(s: float) -> np.ndarray:
        return call.x * np.sqrt(s * s + 1) + call.eps * (then - s) - after

    s = float(min(_GUESSES[then < _GUESSES], key=lambda guess: float(np.square(residual(guess)).sum())))
    for _ in range(_ROUNDS):
        slope = call.x * s / np.sqrt(s * s + 1) - call.eps
        s -= float((slope * residual(s)).sum() / np.square(slope).sum())
    if np.abs(residual(s)).max() > 1e-4 * np.abs(after).max():
        raise EngineFailure(f"no sigma makes an Euler step of the call at timestep {call.t:.6g}")
    return s


STAGES: dict[str, SdcppStage] = {
    "stage/clip_tokens": SdcppStage(_refuses_prompt, _prompt),
    "stage/sigmas": SdcppStage(_refuses_sigmas, _sigmas),
}
