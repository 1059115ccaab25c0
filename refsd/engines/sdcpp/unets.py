"""Run SD 2, SDXL, the variants of SD 1 and SDXL, and ControlNet inside sd-cli.

SD 2 and SDXL are complete checkpoints. The other UNets are files of their own, loaded with text encoders of zeros.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from refsd.engines.sdcpp.reach import LATENT, Call, Reach, f32, outputs, scratch, size, whole_file
from refsd.engines.sdcpp.sd1 import refuses_latent, refuses_picture, refuses_unet, vae_decoder, vae_encoder
from refsd.engines.sdcpp.stand_ins import CLIP_L_GRAPH, clip_g, encoder_of
from refsd.engines.sdcpp.tap import Feed, Graph, signature
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure, ModelFiles

_TOKENS = 77
_EOS = 49407
_CHANNELS = 4  # latent channels; extra inpaint and edit channels are a separate input
_EPS = ("--prediction", "eps")  # otherwise sd-cli runs SD 2's UNet once more to detect the prediction type
_DEVIATIONS = ("sdcpp/group-norm-eps", "sdcpp/gelu-tanh")
_GELU = ("sdcpp/gelu-tanh",)

Flags = Callable[[ModelFiles, ModelRecipe, Path], list[str]]


def _unet_flags(context_dim: int) -> Flags:
    """Return the flags for a UNet without text encoders; SDXL's context_dim (2048) needs both stand-in encoders."""

    def flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
        tae = model_files(ModelRecipe("taesd", "f32", tiny=True), "ldm")
        args = ["-m", str(encoder_of(folder, context_dim)), "--diffusion-model", str(model_files(model, "ldm"))]
        args += ["--taesd", str(tae)]
        return [*args, "--clip_g", str(clip_g(folder))] if context_dim == 2048 else args

    return flags


def _control_flags(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    """Name one file that contains the UNet and its ControlNet."""
    return [*_unet_flags(768)(model_files, model, folder), "--control-net", str(model_files(model, "ldm"))]


def _rows(call: Call) -> list[tuple[np.ndarray, ...]]:
    """List the UNet's inputs of each item: x and extra channels, timestep, context, y."""
    x, t, context = (f32(call.arrays[name]) for name in ("x", "timesteps", "context"))
    parts = [part for part in np.split(x, [_CHANNELS], axis=1) if part.shape[1]]
    y = [f32(call.arrays["y"])] if "y" in call.arrays else []
    return [(*(p[n] for p in parts), t[n : n + 1], context[n], *(v[n] for v in y)) for n in range(len(x))]


def _unet(call: Call) -> dict[str, np.ndarray]:
    """Run each item as one step without guidance; an item with a hint runs in a separate process."""
    items = _rows(call)
    if "hint" not in call.arrays:
        return {"out": outputs(call, _steps(call, len(items)), items, skip=(CLIP_L_GRAPH,))}
    # The UNet's graph reads the output of the program's own ControlNet graph.
    controls = _controls(call)
    answers = []
    for item, hint in zip(items, f32(call.arrays["hint"]), strict=True):
        first, unet = _control_inputs(item, hint, controls), (*item, *controls)
        feeds = [Feed(first, 0, array) for array in first[: -len(controls) - 1]]
        feeds += [Feed(unet, 0, array) for array in item]
        answers.append(_controlled(call, feeds, unet, "").output)
    return {"out": np.stack(answers)}


def _controlnet(call: Call) -> dict[str, np.ndarray]:
    """Run each item in a separate process: from the second step on, sd-cli reuses the first hint's embedding."""
    controls = _controls(call)
    answers = []
    for item, hint in zip(_rows(call), f32(call.arrays["hint"]), strict=True):
        inputs = _control_inputs(item, hint, controls)
        feeds = [Feed(inputs, 0, array) for array in inputs[: -len(controls) - 1]]
        # The first output is the hint's embedding.
        answers.append([op.result for op in _controlled(call, feeds, inputs, "CPY").ops][1:])
    return {f"control.{i}": np.stack(parts) for i, parts in enumerate(zip(*answers, strict=True))}


def _controls(call: Call) -> list[np.ndarray]:
    """Return zeros in the shapes of SD 1's ControlNet outputs: one for each skip, then one for the middle block."""
    H, W = call.arrays["x"].shape[2:]
    widths = (320, 320, 320, 320, 640, 640, 640, 1280, 1280, 1280, 1280, 1280, 1280)
    halved = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3)
    return [np.zeros((D, H >> n, W >> n), np.float32) for D, n in zip(widths, halved, strict=True)]


def _control_inputs(item: tuple[np.ndarray, ...], hint: np.ndarray, controls: list[np.ndarray]):
    """List the inputs of a ControlNet's graph, and its output buffers (the hint's first), which are leaves too."""
    return (item[0], hint, *item[1:], np.zeros_like(controls[0]), *controls)


def _controlled(call: Call, feeds: list[Feed], inputs: tuple[np.ndarray, ...], ops: str) -> Graph:
    """Run sd-cli with a ControlNet and return the graph that has these inputs."""
    kind = signature(inputs)
    H, W = call.arrays["hint"].shape[2:]
    with scratch() as folder:
        Image.new("RGB", (W, H)).save(folder / "hint.png")
        args = [*_steps(call, 1), "--control-strength", "1", "--control-image", str(folder / "hint.png")]
        finished = call.program.run_tapped(args, feeds, ops=ops, stop=(1, kind), skip=(CLIP_L_GRAPH,))
    graphs = [graph for graph in finished.graphs if graph.signature == kind]
    if not graphs:
        seen = "; ".join(sorted({graph.signature for graph in finished.graphs})) or "none at all"
        raise EngineFailure(f"expected a graph with inputs {kind}, sd-cli computed {seen}")
    return graphs[0]


def _steps(call: Call, n: int) -> list[str]:
    args = [*call.args, *size(call.arrays["x"], LATENT), *_EPS]
    return [*args, "-p", "a", "--cfg-scale", "1", "--steps", str(n), "--sampling-method", "euler"]


def _clip_h(call: Call) -> dict[str, np.ndarray]:
    """Read the normed penultimate layer, and in a second run the last layer, whose row at EOS is pooled."""
    ids = call.arrays["input_ids"].astype(np.int32)
    first_eos = np.argmax(ids == call.case.params.get("eos", _EOS), axis=1)
    skips = (call.case.params.get("clip_skip", 1), 1)
    hidden, last = (np.stack([texts(call, row, "a", skip, 1)[0] for row in ids]) for skip in skips)
    return {"last_hidden_state": hidden, "pooled": last[np.arange(len(ids)), first_eos]}


def _clip_big_g(call: Call) -> dict[str, np.ndarray]:
    """Encode each row with a prompt of its length: sd-cli takes the pooled token's position from its own prompt."""
    answers = []
    for row in call.arrays["input_ids"].astype(np.int32):
        end = int(np.argmax(row == call.case.params.get("eos", _EOS)))
        if end == 0:
            raise EngineFailure("ids of which none but the first ends the prompt: it ends before it begins")
        prompt = " ".join(["cat"] * (end - 1))
        answers.append(texts(call, row, prompt, call.case.params.get("clip_skip", 1), 3)[1:])
    hidden, pooled = (np.stack(parts) for parts in zip(*answers, strict=True))
    return {"last_hidden_state": hidden, "pooled": pooled}


def texts(call: Call, row: np.ndarray, prompt: str, clip_skip: int, graphs: int) -> list[np.ndarray]:
    """Feed the same ids to a prompt's first text graphs, and return their outputs; sd-cli's own mask stays."""
    item = (row, np.zeros((_TOKENS, _TOKENS), np.float32))
    kind = signature(item)
    args = [*call.args, *_EPS, "-p", prompt, "--clip-skip", str(clip_skip)]
    args += ["-W", "64", "-H", "64", "--cfg-scale", "1"]
    finished = call.program.run_tapped(args, [Feed(item, n, row) for n in range(graphs)], stop=(graphs, kind))
    found = [graph.output for graph in finished.graphs if graph.signature == kind]
    if len(found) != graphs:
        raise EngineFailure(f"expected {graphs} graphs with inputs {kind}, sd-cli computed {len(found)}")
    return found


def _refuses_text(case: Case) -> str | None:
    if case.inputs["input_ids"].shape[1] != _TOKENS:
        return f"sd-cli encodes {_TOKENS} tokens at a time"
    final_norm = case.params.get("final_norm", True)
    if final_norm != (case.op == "model/clip"):
        return "sd-cli norms what SD 2 takes of its text encoder, and not what SDXL takes"
    return None


_ALONE = {
    "sd15-inpaint": 768,
    "pix2pix": 768,
    "tiny-sd": 768,
    "sdxs-512": 768,
    "sdxs-09": 1024,
    "sdxl-inpaint": 2048,
    "ssd-1b": 2048,
    "vega": 2048,
}

REACHES: dict[tuple[str, str], Reach] = {
    **{(family, "model/unet"): Reach(_unet, refuses_unet, whole_file, _DEVIATIONS) for family in ("sd21", "sdxl")},
    **{
        (family, "model/unet"): Reach(_unet, refuses_unet, _unet_flags(width), _DEVIATIONS)
        for family, width in _ALONE.items()
    },
    ("sd15-control", "model/unet"): Reach(_unet, refuses_unet, _control_flags, _DEVIATIONS),
    ("sd15-control", "model/controlnet"): Reach(_controlnet, refuses_unet, _control_flags, _DEVIATIONS),
    ("sd21", "model/clip"): Reach(_clip_h, _refuses_text, whole_file, _GELU),
    ("sdxl", "model/clip_g"): Reach(
        _clip_big_g, _refuses_text, whole_file, ("sdcpp/openclip-projection", "sdcpp/gelu-tanh")
    ),
    **{
        (family, op): reach
        for family in ("sd21", "sdxl")
        for op, reach in {
            "model/vae-encoder": Reach(vae_encoder, refuses_picture, whole_file),
            "model/vae-decoder": Reach(vae_decoder, refuses_latent, whole_file),
        }.items()
    },
}
