"""Run `refsd adopt`: make a folder of each graph, with the answer in float64, and tell what is in it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.adoption import folder as folders
from refsd.adoption import sources
from refsd.adoption.component import Running
from refsd.adoption.noise_levels import case_of
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
    folder: Path
    inputs: Mapping[str, Sequence[int]]
    weights: int
    numbers: int
    operations: Mapping[str, int]
    taps: Mapping[str, tuple[int, ...]]
    apart: Mapping[str, float]


class Adoption(NamedTuple):
    """
    parts:     the source itself, or the networks of a pipeline
    refused:   network -> why it cannot be adopted
    levels:    the case of a pipeline's noise levels, if refsd knows their rule
    scheduler: a pipeline's; "" of other sources
    """

    parts: Sequence[Made]
    refused: Mapping[str, str] = {}
    levels: str | None = None
    scheduler: str = ""


def adopt(
    source: str, out: Path, config: Path | None, inputs: Sequence[str], dims: Sequence[str], own: bool
) -> Adoption:
    """Write the folder `out`. Raises BadInput before anything is written for a source that refsd cannot adopt."""
    check_replaceable(out, folders.CASE)
    if sources.is_graph(source):
        if config is not None:
            raise BadInput(f"--config: {source} is a graph, which has none; leave it out")
        graph = sources.of_graph(Path(source), gathered(Path(source), inputs, dims))
        return Adoption([_made(source, out, graph, {})])
    given = {key: x for path in inputs for key, x in read_dump(Path(path)).items()}
    module, call = sources.opened(source, config, given)
    from refsd.adoption import pipelines

    if pipelines.is_pipeline(module):
        return _parts(source, out, pipelines.recorded(module, call), own)
    return Adoption([_made(source, out, *sources.of_module(module, call, source, folders.case_name(out), own))])


def _parts(source: str, out: Path, run: Any, own: bool) -> Adoption:
    """Adopt each network of a pipeline that was run, and its noise levels."""
    parts, refused = [], {}
    out.mkdir(parents=True, exist_ok=True)
    for name, one in run.calls.items():
        place = out / name
        try:
            with one.as_forward() as module:
                adopted = sources.of_module(module, one.call, source, folders.case_name(place), own)
            parts.append(_made(f"{source}: {name}", place, *adopted))
        except BadInput as error:
            refused[name] = str(error)
    if not parts:
        raise BadInput("; ".join(refused.values()))
    levels = case_of(out.absolute().name, run.sigmas, run.timesteps)
    if levels is not None:
        folders.write_levels(out, levels)
    return Adoption(parts, refused, levels and levels.name, run.scheduler)


def _made(source: str, out: Path, adopted: folders.Adopted, answer: Mapping[str, np.ndarray]) -> Made:
    """Write the folder of one graph. answer: as torch computes it in float64; {} of a graph in ONNX"""
    name = folders.case_name(out)
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
        out,
        {key: case.inputs[key].shape for key in COMPONENTS[name].arguments},
        len(weights),
        sum(int(np.prod(shape, dtype=np.int64)) for shape in weights.values()),
        dict(Counter(step.label for step in running.graph.steps if step.computes).most_common()),
        {key: y.shape for key, y in taps.items()},
        apart,
    )
