"""Run `refsd adopt`: make a folder of each graph, with the answer in float64, and tell what is in it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer

from refsd.adoption import folder as folders
from refsd.adoption import sources
from refsd.adoption.component import Running
from refsd.commands.run_onnx import gathered
from refsd.components import COMPONENTS
from refsd.engines.dump.engine import read_dump
from refsd.golden.output_file import check_replaceable, replaced_folder
from refsd.goldens.making import make_into
from refsd.judges.model import ModelJudge
from refsd.numerics.errors import BadInput
from refsd.progress.steps import steps
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
    parts:    the source itself, or the networks of a pipeline
    pipeline: what its folder lists; None of other sources
    """

    parts: Sequence[Made]
    pipeline: folders.Pipeline | None = None


def adopt(
    source: str, out: Path, config: Path | None, inputs: Sequence[str], dims: Sequence[str], own: bool
) -> Adoption:
    """Write the folder `out`. Raises BadInput before anything is written for a source that refsd cannot adopt."""
    check_replaceable(out, folders.marker(out))
    if sources.is_graph(source):
        if config is not None:
            raise BadInput(f"--config: {source} is a graph, which has none; leave it out")
        graph = sources.of_graph(Path(source), gathered(Path(source), inputs, dims))
        return Adoption([_made(source, out, folders.case_name(out), graph, {})])
    given = {key: x for path in inputs for key, x in read_dump(Path(path)).items()}
    module, call = sources.opened(source, config, given, own)
    from refsd.adoption import pipelines

    if pipelines.is_pipeline(module):
        typer.echo(f"{type(module).__name__}: one run of it, then a graph of each network", err=True)
        return _parts(source, out, pipelines.recorded(module, call), own)
    name = folders.case_name(out)
    return Adoption([_made(source, out, name, *sources.of_module(module, call, source, name, own))])


def _parts(source: str, out: Path, run: Any, own: bool) -> Adoption:
    """Adopt each network of a pipeline that was run, and what stands between them."""
    whole = folders.case_name(out)
    from refsd.adoption.constants import cases_of

    parts, refused = [], {}
    with replaced_folder(out, folders.marker(out)) as place, steps("networks", len(run.calls)) as advance:
        for name, one in run.calls.items():
            case = f"{whole}/{name}"
            try:
                with one.as_forward() as module:
                    adopted = sources.of_module(module, one.call, source, case, own)
                made = _made(f"{source}: {name}", place / name, case, *adopted)
                parts.append(made._replace(folder=out / name))
            except BadInput as error:
                refused[name] = str(error)
            advance(name)
        if not parts:
            raise BadInput("; ".join(refused.values()))
        stages, unknown = cases_of(whole.removeprefix(folders.KIND), run)
        made, scheduler = {"source": Path(source).name, **run.made}, type(run.scheduler).__name__
        names = [part.folder.name for part in parts]
        pipeline = folders.Pipeline(made, names, refused | unknown, stages, scheduler)
        folders.write_note(place / folders.PIPELINE, pipeline)
    return Adoption(parts, pipeline)


def _made(source: str, out: Path, name: str, adopted: folders.Adopted, answer: Mapping[str, np.ndarray]) -> Made:
    """Write the folder of one graph. name: of its case; answer: torch's in float64, {} of a graph in ONNX"""
    with folders.written(out, adopted, name) as part:
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
