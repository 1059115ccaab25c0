"""Run `refsd adopt`: make a folder of a graph, with the answer in float64, and tell what is in it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.adoption import folder as folders
from refsd.adoption import sources
from refsd.adoption.component import Running
from refsd.commands.run_onnx import gathered
from refsd.components import COMPONENTS
from refsd.engines.dump.engine import read_dump
from refsd.golden.output_file import check_replaceable
from refsd.goldens.making import make_into
from refsd.judges.model import ModelJudge
from refsd.numerics.errors import BadInput
from refsd.weights.model_files import open_store

# Relative L2 by which the graph may be off torch's own float64 run, where the module asks for float32 inside.
_APART = 1e-3


class Made(NamedTuple):
    """
    taps:  name -> shape, in the order of computation
    apart: output -> distance from what torch computes in float64; none for a graph in ONNX
    """

    case: str
    inputs: Mapping[str, Sequence[int]]
    weights: int
    numbers: int
    operations: Mapping[str, int]
    taps: Mapping[str, tuple[int, ...]]
    apart: Mapping[str, float]


def adopt(
    source: str, out: Path, config: Path | None, inputs: Sequence[str], dims: Sequence[str], own: bool
) -> Made:
    """Write the folder `out`. Raises BadInput before anything is written for a source that refsd cannot adopt."""
    check_replaceable(out, folders.CASE)
    name = folders.case_name(out)
    answer: dict[str, np.ndarray] = {}
    if sources.is_graph(source):
        if config is not None:
            raise BadInput(f"--config: {source} is a graph, which has none; leave it out")
        adopted = sources.of_graph(Path(source), gathered(Path(source), inputs, dims))
    else:
        given = {key: x for path in inputs for key, x in read_dump(Path(path)).items()}
        adopted, answer = sources.of_torch(source, config, given, name, own)
    with folders.written(out, adopted) as part:
        case = folders.read(part)
        store = open_store(part)
        make_into(store, [case])
        truth = store.get(name).outputs
        apart = {
            key: float(np.linalg.norm(truth[key] - y) / (np.linalg.norm(y) or 1.0)) for key, y in answer.items()
        }
        wrong = {key: distance for key, distance in apart.items() if not distance <= _APART}
        if wrong:
            said = ", ".join(f"{key} by {distance:.2g}" for key, distance in wrong.items())
            raise BadInput(
                f"{source}: the exported graph is not the module: it differs in {said}, relative to torch"
            )
        taps = ModelJudge().reference_taps(case, case.realize())
    running = COMPONENTS[name].run
    assert isinstance(running, Running)
    weights = {key: recipe.shape for key, recipe in case.inputs.items() if key not in COMPONENTS[name].arguments}
    return Made(
        name,
        {key: case.inputs[key].shape for key in COMPONENTS[name].arguments},
        len(weights),
        sum(int(np.prod(shape, dtype=np.int64)) for shape in weights.values()),
        dict(Counter(step.label for step in running.graph.steps if step.computes).most_common()),
        {key: y.shape for key, y in taps.items()},
        apart,
    )
