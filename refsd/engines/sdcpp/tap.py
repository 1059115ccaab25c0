"""Build the tap (tap.c), configure it, and read the graphs that it recorded."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.golden.cache_folder import cache_folder
from refsd.golden.scratch import Scratch
from refsd.numerics.errors import BadInput

_SOURCE = Path(__file__).with_name("tap.c")
_FLAGS = ("-std=gnu11", "-O1", "-shared", "-fPIC", "-Wl,-z,lazy")
_DTYPES = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "i32": np.dtype("<i4")}
_TYPES = {dtype: name for name, dtype in _DTYPES.items()}


class Feed(NamedTuple):
    """Replace one input of the nth graph (from 0) with a given signature by `array`.

    inputs: arrays with the shapes and dtypes of the graph's inputs, which give the signature; inputs with equal
            shape and dtype stand in the order in which the graph uses them
    array:  the replacement: one of `inputs`, or an array that replaces the first input of its shape and dtype
    """

    inputs: tuple[np.ndarray, ...]
    nth: int
    array: np.ndarray


class TappedOp(NamedTuple):
    """One operation of a graph. params: the first two op_params, as the integers that ggml stores"""

    op: str
    params: tuple[int, int]
    source: np.ndarray
    result: np.ndarray


class WeightHead(NamedTuple):
    """What the tap notes of a weight: ggml's type and shape (the fastest axis first), and its first 16 bytes."""

    type: str
    ne: tuple[int, ...]
    head: bytes


class WeightedOp(NamedTuple):
    """The result of an operation that reads a weight."""

    op: str
    weight: WeightHead
    result: np.ndarray


class Ran(NamedTuple):
    """Where a graph was computed, as ggml tells it of the very objects that computed it.

    device:      of the backend
    memory:      buffer type of the output's memory
    own_memory:  buffer type that the backend allocates
    nodes:       nodes of the graph
    unsupported: the first operation that the backend says it does not support; "" if there is none
    """

    device: str
    memory: str
    own_memory: str
    nodes: int
    unsupported: str


@dataclass
class Graph:
    """One recorded graph. Shapes are in torch's order, without leading axes of size 1.

    inputs: in the signature's order
    nodes:  requested nodes, by name
    ops:    requested operations, in the order of computation
    weighted: operations that read a weight, if requested
    ran:    where it was computed; None if it was skipped
    """

    signature: str
    inputs: list[np.ndarray] = field(default_factory=list)
    output: np.ndarray = field(default_factory=lambda: np.empty(0))
    nodes: dict[str, np.ndarray] = field(default_factory=dict)
    ops: list[TappedOp] = field(default_factory=list)
    weighted: list[WeightedOp] = field(default_factory=list)
    ran: Ran | None = None


def describe(array: np.ndarray) -> str:
    """Describe an input as the tap does: "f32:32x24x4x1". Raises KeyError for a dtype other than f32, f16, i32."""
    ne = list(array.shape[::-1])
    while len(ne) > 1 and ne[-1] == 1:
        ne.pop()
    ne += [1] * (4 - len(ne))
    return f"{_TYPES[array.dtype]}:{'x'.join(map(str, ne))}"


def signature(inputs: Iterable[np.ndarray]) -> str:
    return ",".join(sorted(map(describe, inputs)))


def build() -> Path:
    """Compile the tap, unless the user's cache already holds it, and return the library's path.

    Raises BadInput if there is no C compiler or if it fails.
    """
    key = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    library = cache_folder("taps") / f"sdcpp-{key}.so"
    if library.exists():
        return library
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise BadInput("the tap for sd-cli is compiled at first use: install a C compiler or name one in CC")
    with Scratch(library.parent, ".making-") as folder:
        made = folder / library.name
        command = [*compiler.split(), *_FLAGS, "-o", str(made), str(_SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadInput(f"{compiler} cannot compile {_SOURCE.name}: {done.stderr.strip().splitlines()[-1:]}")
        made.replace(library)
    return library


def environment(
    folder: Path,
    feeds: Iterable[Feed] = (),
    nodes: str = "",
    ops: str = "",
    stop: tuple[int, str] | None = None,
    skip: Iterable[str] = (),
    weights: bool = False,
) -> dict[str, str]:
    """Write the feeds to `folder` and return the environment variables that make a program record its graphs there.

    nodes: also record nodes whose names begin with this prefix
    ops:   also record operations of these kinds: ggml's names, separated by commas
    stop:  (count, signature): end the program after so many graphs of that signature
    skip:  signatures of graphs that need not be computed
    weights: also record the operations that read a weight
    """
    lines = []
    for i, (inputs, nth, array) in enumerate(feeds):
        name = f"feed{i}.bin"
        np.ascontiguousarray(array).tofile(folder / name)
        which = _place(inputs, array)
        lines.append(f"{signature(inputs)}\t{nth}\t{which}\t{name}\n")
    (folder / "feed.txt").write_text("".join(lines))
    env = {"LD_PRELOAD": str(build()), "TAP_DIR": str(folder)}
    if nodes:
        env["TAP_NODES"] = nodes
    if ops:
        env["TAP_OPS"] = ops
    if weights:
        env["TAP_WEIGHTS"] = "1"
    if stop:
        env["TAP_STOP"] = f"{stop[0]} {stop[1]}"
    if skip:
        env["TAP_SKIP"] = ";".join(skip)
    return env


def _place(inputs: tuple[np.ndarray, ...], array: np.ndarray) -> int:
    """Return the index of the input that `array` replaces, among the inputs sorted by description."""
    kinds = sorted(((describe(x), i) for i, x in enumerate(inputs)))
    own = [place for place, (_, i) in enumerate(kinds) if inputs[i] is array]
    return own[0] if own else [kind for kind, _ in kinds].index(describe(array))


def read(folder: Path) -> list[Graph]:
    """Read every recorded graph; empty if the program computed none through a shared ggml."""
    index = folder / "index.txt"
    return parse(index.read_text().splitlines(), folder) if index.exists() else []


def parse(lines: Iterable[str], folder: Path) -> list[Graph]:
    """Read the graphs that these lines of the tap's index list."""
    graphs: list[Graph] = []
    source, weight = np.empty(0), None
    for line in lines:
        role, *fields = line.split("\t")
        if role == "graph":
            graphs.append(Graph(fields[0]))
            continue
        if role == "where":
            device, memory, own_memory, nodes, unsupported = fields
            graphs[-1].ran = Ran(device, memory, own_memory, int(nodes), unsupported)
            continue
        if role == "weight":
            weight = WeightHead(fields[0], tuple(map(int, fields[1:5])), bytes.fromhex(fields[5]))
            continue
        name, kind, *ne, file, op, p0, p1 = fields
        array = _array(folder / file, kind, [int(n) for n in ne])
        graph = graphs[-1]
        if role == "input":
            graph.inputs.append(array)
        elif role == "output":
            graph.output = array
        elif role == "source":
            source = array
        elif weight is not None:
            graph.weighted.append(WeightedOp(op, weight, array))
            weight = None
        elif source.size:
            graph.ops.append(TappedOp(op, (int(p0), int(p1)), source, array))
            source = np.empty(0)
        else:
            graph.nodes[name] = array
    return graphs


def _array(file: Path, kind: str, ne: list[int]) -> np.ndarray:
    shape = ne[::-1]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return np.fromfile(file, _DTYPES[kind]).reshape(shape)
