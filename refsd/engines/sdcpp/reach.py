"""Describe how to run one component inside sd-cli, and feed its graphs."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.tap import Feed, Graph, signature
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure, ModelFiles

LATENT = 8  # image pixels along a side of one latent pixel
_ALIGN = 64  # sd-cli rounds a picture's sides up to a multiple of this

Arrays = Mapping[str, np.ndarray]


class Call(NamedTuple):
    """One case to run in sd-cli.

    args:        sd-cli's flags that name the models
    case:        the case
    arrays:      the case's inputs
    model_files: returns the other checkpoints that sd-cli must load
    folder:      scratch folder
    graphs:      collects the items' graphs if the layers inside are wanted; None if not
    """

    program: Program
    args: list[str]
    case: Case
    arrays: Arrays
    model_files: ModelFiles
    folder: Path
    graphs: list[Graph] | None = None


class Reach(NamedTuple):
    """How to run one component inside sd-cli.

    answer:     Call -> outputs by name. sd-cli computes one item at a time: a batch becomes several graphs of one
                process (sampling steps, pictures of a batch) or, where there is no such loop, several processes.
    refuses:    Case -> the reason why sd-cli cannot run it, or None
    flags:      (model files, recipe, scratch folder) -> the flags that name the models
    deviations: names of sd-cli's declared deviations
    tiny:       True if sd-cli also loads the tiny size
    """

    answer: Callable[[Call], dict[str, np.ndarray]]
    refuses: Callable[[Case], str | None]
    flags: Callable[[ModelFiles, ModelRecipe, Path], list[str]]
    deviations: tuple[str, ...] = ()
    tiny: bool = False


def whole_file(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    """Name one checkpoint that contains all components."""
    return ["-m", str(model_files(model, "ldm"))]


def outputs(
    call: Call,
    args: list[str],
    items: list[tuple[np.ndarray, ...]],
    fed: int | None = None,
    skip: tuple[str, ...] = (),
) -> np.ndarray:
    """Feed the nth item to the nth graph with such inputs, and stack the graphs' outputs.

    items: the input arrays of each graph; their shapes and dtypes identify the graphs
    fed:   feed only item[:fed]; the program's own values stay for the other inputs
    skip:  signatures of earlier graphs that need not be computed

    Raises EngineFailure if sd-cli did not compute these graphs.
    """
    kind = signature(items[0])
    feeds = [Feed(item, n, array) for n, item in enumerate(items) for array in item[:fed]]
    stop = len(items), kind
    finished = call.program.run_tapped(args, feeds, stop=stop, skip=skip, weights=call.graphs is not None)
    graphs = [graph for graph in finished.graphs if graph.signature == kind]
    if len(graphs) != len(items):
        seen = "; ".join(sorted({graph.signature for graph in finished.graphs})) or "none at all"
        raise EngineFailure(f"expected {len(items)} graphs with inputs {kind}, sd-cli computed {seen}")
    if call.graphs is not None:
        call.graphs.extend(graphs)
    return np.stack([graph.output for graph in graphs])


def f32(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32)


def size(x: np.ndarray, scale: int) -> list[str]:
    """Return sd-cli's flags for the picture's size. x: [N, C, H, W]; scale: image pixels a pixel of x"""
    return ["-H", str(scale * x.shape[2]), "-W", str(scale * x.shape[3])]


def one_step(items: int) -> list[str]:
    """Return the flags for a run of one Euler step an item; each step computes one graph of the denoiser."""
    return ["-p", "a", "--cfg-scale", "1", "--steps", str(items), "--sampling-method", "euler"]


def picture_to_edit(folder: Path, latent: np.ndarray, scale: int) -> list[str]:
    """Return the flags for a reference picture of the latent's size. Its latent [N, C, h, w] is then replaced."""
    H, W = latent.shape[2:]
    Image.new("RGB", (scale * W, scale * H)).save(folder / "reference.png")
    return ["-r", str(folder / "reference.png"), "--disable-auto-resize-ref-image"]


def refuses_size(shape: tuple[int, ...], scale: int) -> str | None:
    multiple = _ALIGN // scale
    fits = shape[2] % multiple == 0 and shape[3] % multiple == 0
    return None if fits else f"sd-cli takes H and W in multiples of {multiple} here"


def refuses_context(tokens: int, scale: int) -> Callable[[Case], str | None]:
    """Return the refusal of a denoiser whose prompt has so many tokens; it may take a reference."""

    def refuses(case: Case) -> str | None:
        if case.inputs["context"].shape[1] != tokens:
            return f"sd-cli's prompt makes {tokens} tokens of context here"
        pictures = [case.inputs[name].shape for name in ("reference", "x") if name in case.inputs]
        return next(filter(None, (refuses_size(shape, scale) for shape in pictures)), None)

    return refuses


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="refsd-sdcpp-") as folder:
        yield Path(folder)
