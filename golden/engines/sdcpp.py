"""stable-diffusion.cpp through an unmodified sd-cli.

The program offers a picture, no component. Where it links ggml as a shared library, a tap
(sdcpp_tap.c) puts a case's inputs in place of its own and reads the answer: each component runs as
the program builds it. One process answers a case; what follows the wanted graph is not computed.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.deviations import DEVIATIONS, Deviation
from refsd.golden.engines import EngineFailure, Found, ModelFiles
from refsd.golden.engines.sdcpp_program import Program
from refsd.golden.engines.sdcpp_tap import Feed, Graph, signature
from refsd.golden.numerics import GGML_CPU, GGML_CPU_FLASH, Numerics
from refsd.golden.tensor import StoredTensor

_TOKENS = 77
_EOS = 49407
_LATENT = 8  # pixels a latent pixel
_ALIGN = 64  # sd-cli rounds a picture's sides up to this


class SdcppEngine:
    """
    name:        "sdcpp", or "sdcpp-flash" with --fa
    model_files: gives the checkpoint of a case
    """

    def __init__(self, name: str, program: Program, model_files: ModelFiles | None):
        self.name = name
        self.version = program.version
        self._program = program
        self._model_files = model_files
        self._flash = name == "sdcpp-flash"

    def refuses(self, case: Case) -> str | None:
        if case.op not in _ANSWERS:
            return f"sd-cli reaches {', '.join(_ANSWERS)}, not {case.op}"
        if not self._program.shares_ggml:
            return (
                "this sd-cli holds ggml inside: only one built with SD_BUILD_SHARED_GGML_LIB=ON can be looked into"
            )
        if case.model is None or self._model_files is None:
            return "no model files"
        return _refuses_model(case.model) or _REFUSES[case.op](case)

    def numerics(self, case: Case) -> Numerics:
        return GGML_CPU_FLASH if self._flash else GGML_CPU

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return tuple(DEVIATIONS[name] for name in _DEVIATIONS[case.op])

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        assert case.model is not None and self._model_files is not None
        arrays = {name: tensor.values() for name, tensor in inputs.items()}
        args = ["-m", str(self._model_files(case.model, "ldm"))] + (["--fa"] if self._flash else [])
        return _ANSWERS[case.op](self._program, args, arrays, case.params)


# One function a component: program, arguments that name the model, inputs, params -> outputs. sd-cli
# takes one item at a time: a batch becomes as many graphs of one process where it has a reason for them.


def _unet(program: Program, args: list[str], inputs: Mapping[str, np.ndarray], params: Mapping[str, Any]):
    """Each item is one step of a run without guidance."""
    items = [(_f32(x), _f32(t).reshape(1), _f32(c)) for x, t, c in zip(*map(inputs.get, _UNET_INPUTS), strict=True)]
    args = [*args, *_size(inputs["x"], _LATENT), "--steps", str(len(items)), "--sampling-method", "euler"]
    return {"out": _outputs(program, [*args, "-p", "a", "--cfg-scale", "1"], items)}


def _clip(program: Program, args: list[str], inputs: Mapping[str, np.ndarray], params: Mapping[str, Any]):
    """Each item is one chunk of a prompt that is long enough."""
    ids = inputs["input_ids"].astype(np.int32)
    mask = np.zeros((_TOKENS, _TOKENS), np.float32)
    prompt = " ".join(["cat"] * (75 * (len(ids) - 1) + 1))
    hidden = _outputs(program, [*args, "-p", prompt, "-W", "64", "-H", "64"], [(row, mask) for row in ids], fed=1)
    # SD 1.x asks it for no pooled vector; in its words that is one row of the hidden states.
    first_eos = np.argmax(ids == params.get("eos", _EOS), axis=1)
    return {"last_hidden_state": hidden, "pooled": hidden[np.arange(len(ids)), first_eos]}


def _vae_decoder(program: Program, args: list[str], inputs: Mapping[str, np.ndarray], params: Mapping[str, Any]):
    """Each item is one picture of a batch."""
    items = [(_f32(z),) for z in inputs["z"]]
    args = [*args, *_size(inputs["z"], _LATENT), "--steps", "1", "-b", str(len(items))]
    with _scratch() as folder:
        args += ["-p", "a", "--cfg-scale", "1", "-o", str(folder / "out.png")]
        return {"out": _outputs(program, args, items)}


def _vae_encoder(program: Program, args: list[str], inputs: Mapping[str, np.ndarray], params: Mapping[str, Any]):
    """Each item is the first picture of a process of its own."""
    moments = []
    for x in inputs["x"]:
        with _scratch() as folder:
            picture = folder / "in.png"
            Image.new("RGB", x.shape[:0:-1]).save(picture)
            call = [*args, *_size(inputs["x"], 1), "--steps", "1", "-p", "a", "-i", str(picture)]
            moments.append(_outputs(program, call, [(_f32(x),)])[0])
    mean, logvar = np.split(np.stack(moments), 2, axis=1)
    return {"mean": mean, "logvar": logvar}


def _outputs(program: Program, args: list[str], items: list[tuple[np.ndarray, ...]], fed: int | None = None):
    """Feed each item to a graph of its own. fed: only so many of an item's arrays, the rest are the program's.

    Raises EngineFailure where the graphs did not come.
    """
    kind = signature(items[0])
    feeds = [Feed(item, n, array) for n, item in enumerate(items) for array in item[:fed]]
    finished = program.run_tapped(args, feeds, stop=(len(items), kind))
    graphs: list[Graph] = [graph for graph in finished.graphs if graph.signature == kind]
    if len(graphs) != len(items):
        seen = "; ".join(sorted({graph.signature for graph in finished.graphs})) or "none at all"
        raise EngineFailure(f"expected {len(items)} graphs with inputs {kind}, sd-cli computed {seen}")
    return np.stack([graph.output for graph in graphs])


def _f32(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32)


def _size(x: np.ndarray, scale: int) -> list[str]:
    """sd-cli's flags for the size of x [N, C, H, W], `scale` pixels a pixel of x."""
    return ["-H", str(scale * x.shape[2]), "-W", str(scale * x.shape[3])]


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="refsd-sdcpp-") as folder:
        yield Path(folder)


def _refuses_model(model: ModelRecipe) -> str | None:
    if model.family != "sd15":
        return f"how to reach the components of {model.family} in sd-cli is not known here"
    return "sd-cli loads SD 1.x in its full size only" if model.tiny else None


def _refuses_unet(case: Case) -> str | None:
    if case.inputs["context"].shape[1] != _TOKENS:
        return f"sd-cli's prompt makes {_TOKENS} tokens of context"
    return _refuses_size(case.inputs["x"].shape, _LATENT)


def _refuses_clip(case: Case) -> str | None:
    if case.params.get("clip_skip", 1) != 1:
        return "pooled comes from the last layer: it is not computed with clip_skip"
    return None if case.inputs["input_ids"].shape[1] == _TOKENS else f"sd-cli encodes {_TOKENS} tokens at a time"


def _refuses_size(shape: tuple[int, ...], scale: int) -> str | None:
    multiple = _ALIGN // scale
    fits = shape[2] % multiple == 0 and shape[3] % multiple == 0
    return None if fits else f"sd-cli takes H and W in multiples of {multiple} here"


_UNET_INPUTS = ("x", "timesteps", "context")
_ANSWERS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "model/unet": _unet,
    "model/clip": _clip,
    "model/vae-encoder": _vae_encoder,
    "model/vae-decoder": _vae_decoder,
}
_REFUSES: dict[str, Callable[[Case], str | None]] = {
    "model/unet": _refuses_unet,
    "model/clip": _refuses_clip,
    "model/vae-encoder": lambda case: _refuses_size(case.inputs["x"].shape, 1),
    "model/vae-decoder": lambda case: _refuses_size(case.inputs["z"].shape, _LATENT),
}
_DEVIATIONS: dict[str, tuple[str, ...]] = {
    "model/unet": ("sdcpp/group-norm-eps", "sdcpp/gelu-tanh"),
    "model/clip": (),
    "model/vae-encoder": (),
    "model/vae-decoder": (),
}


def find(path: str | None = None, model_files: ModelFiles | None = None, timeout=1800.0, **_) -> list[Found]:
    """sd-cli at `path`, in $REFSD_SD_CLI, or on the PATH."""
    place = path or os.environ.get("REFSD_SD_CLI") or shutil.which("sd-cli")
    if place is None:
        return [Found("sdcpp", None, "give sdcpp:/path/to/sd-cli, set REFSD_SD_CLI, or put sd-cli on the PATH")]
    try:
        program = Program(Path(place), timeout)
    except (EngineFailure, OSError) as error:
        return [Found("sdcpp", None, str(error))]
    return [Found(name, SdcppEngine(name, program, model_files)) for name in ("sdcpp", "sdcpp-flash")]
