"""How a component is reached inside sd-cli, as a value; and the feeding that all of them share."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.tap import Feed, signature
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure, ModelFiles

LATENT = 8  # pixels a latent pixel
_ALIGN = 64  # sd-cli rounds a picture's sides up to this

Arrays = Mapping[str, np.ndarray]


class Call(NamedTuple):
    """
    args:        sd-cli's flags that name the models
    case:        what is asked
    arrays:      its inputs
    model_files: gives the checkpoints that stand beside it
    folder:      to write in
    """

    program: Program
    args: list[str]
    case: Case
    arrays: Arrays
    model_files: ModelFiles
    folder: Path


class Reach(NamedTuple):
    """
    answer:     Call -> outputs by name. sd-cli takes one item at a time: a batch becomes as many graphs of one
                process where it has a reason for them, else as many processes.
    refuses:    Case -> why it cannot be put, or None
    flags:      (model files, recipe, a folder to write in) -> the flags that name the models
    deviations: declared, by name
    tiny:       whether sd-cli loads the tiny size too
    """

    answer: Callable[[Call], dict[str, np.ndarray]]
    refuses: Callable[[Case], str | None]
    flags: Callable[[ModelFiles, ModelRecipe, Path], list[str]]
    deviations: tuple[str, ...] = ()
    tiny: bool = False


def whole_file(model_files: ModelFiles, model: ModelRecipe, folder: Path) -> list[str]:
    """The flags for a checkpoint that holds everything."""
    return ["-m", str(model_files(model, "ldm"))]


def outputs(
    program: Program,
    args: list[str],
    items: list[tuple[np.ndarray, ...]],
    fed: int | None = None,
    skip: tuple[str, ...] = (),
) -> np.ndarray:
    """Feed each item to a graph of its own, and stack what these give.

    fed:  only so many of an item's arrays, the rest are the program's
    skip: signatures of graphs before it that need not be computed

    Raises EngineFailure where the graphs did not come.
    """
    kind = signature(items[0])
    feeds = [Feed(item, n, array) for n, item in enumerate(items) for array in item[:fed]]
    finished = program.run_tapped(args, feeds, stop=(len(items), kind), skip=skip)
    graphs = [graph for graph in finished.graphs if graph.signature == kind]
    if len(graphs) != len(items):
        seen = "; ".join(sorted({graph.signature for graph in finished.graphs})) or "none at all"
        raise EngineFailure(f"expected {len(items)} graphs with inputs {kind}, sd-cli computed {seen}")
    return np.stack([graph.output for graph in graphs])


def f32(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32)


def size(x: np.ndarray, scale: int) -> list[str]:
    """sd-cli's flags for the size of x [N, C, H, W], `scale` pixels a pixel of x."""
    return ["-H", str(scale * x.shape[2]), "-W", str(scale * x.shape[3])]


def one_step(items: int) -> list[str]:
    """The flags for a run whose every step is an item: one network's graph a step."""
    return ["-p", "a", "--cfg-scale", "1", "--steps", str(items), "--sampling-method", "euler"]


def picture_to_edit(folder: Path, latent: np.ndarray, scale: int) -> list[str]:
    """The flags for a picture whose latent is as large as this [N, C, h, w]; what it shows is put aside."""
    H, W = latent.shape[2:]
    Image.new("RGB", (scale * W, scale * H)).save(folder / "reference.png")
    return ["-r", str(folder / "reference.png"), "--disable-auto-resize-ref-image"]


def refuses_size(shape: tuple[int, ...], scale: int) -> str | None:
    multiple = _ALIGN // scale
    fits = shape[2] % multiple == 0 and shape[3] % multiple == 0
    return None if fits else f"sd-cli takes H and W in multiples of {multiple} here"


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="refsd-sdcpp-") as folder:
        yield Path(folder)
