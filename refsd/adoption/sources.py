"""What can be adopted: a function that builds a torch module, a class or pipeline of diffusers, a graph in ONNX."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, shape_inference

from refsd.adoption.folder import Adopted, drawn, recipe_of
from refsd.adoption.recognition import gains
from refsd.adoption.tidying import constants_as_tensors, fold, lift
from refsd.files.json_files import read_json
from refsd.golden.wording import counted, did_you_mean, needing
from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate import expected_inputs
from refsd.onnx.evaluate.check import body_schema, called
from refsd.onnx.evaluate.file import Model, open_model, subgraphs
from refsd.onnx.evaluate.node import find

_CLASS = "diffusers:"
INDEX = "model_index.json"


def is_graph(source: str) -> bool:
    return Path(source).suffix == ".onnx"


def opened(source: str, config: Path | None, inputs: Mapping[str, np.ndarray], own: bool) -> tuple[Any, Any]:
    """Return a torch module and its arguments, or a pipeline of diffusers and its request.

    source: "FILE.py:FUNCTION", of a function that returns both, "diffusers:CLASS", or the folder of a pipeline
    config: of a class
    inputs: of a class; of a function they take the place of its arguments
    own:    the module's weights are kept; else a class is built without memory for them

    Raises BadInput.
    """
    with needing(["torch", "onnxscript"], "adopt", "a module"):
        from refsd.adoption import pipelines
    index = Path(source) / INDEX
    if index.is_file():
        if inputs or config is not None:
            raise BadInput(
                f"{source}: a pipeline runs on a request of its own, without --inputs and --config; for another "
                "one adopt FILE.py:FUNCTION, a function that returns the pipeline and its arguments"
            )
        if not isinstance(read_json(index).get("_class_name"), str):
            raise BadInput(f"{index}: it has no _class_name, so it is not the index of a pipeline")
        return pipelines.opened(Path(source))
    if source.startswith(_CLASS):
        return _of_diffusers(source.removeprefix(_CLASS), config, own), dict(inputs)
    module, call = _built(source)
    return module, {**(call if isinstance(call, Mapping) else {}), **inputs} if inputs else call


def of_module(module: Any, call: Any, source: str, case: str, own: bool) -> tuple[Adopted, dict[str, np.ndarray]]:
    """Return what a module is adopted as, and its outputs as torch computes them in float64.

    case: the name by which weights are drawn
    own:  keep the module's own weights

    Raises BadInput.
    """
    from refsd.adoption.capture import capture

    def captured_with(near_one: Collection[str]):
        redraw = None if own else lambda name, shape: drawn(case, name, shape, near_one).values()
        return capture(module, call, redraw)

    captured = captured_with(())
    # Only the graph tells a gain by what it does: those that their names did not tell are drawn anew.
    near_one = frozenset() if own else gains(captured.model, captured.weights)
    if any(recipe_of(name, captured.weights[name].shape).offset != 1 for name in near_one):
        captured = captured_with(near_one)
    weights = {name: weight.read if own else weight.shape for name, weight in captured.weights.items()}
    made = {"source": Path(source).name, **captured.made}
    return Adopted(captured.model, captured.inputs, weights, made, near_one), captured.answer


def of_graph(path: Path, inputs: Mapping[str, np.ndarray]) -> Adopted:
    """Return what a graph in ONNX is adopted as. inputs: all that it takes; they fix the sizes

    Raises BadInput for a graph that refsd does not run, with all that it does not.
    """
    model = open_model(path)
    refuse(model)
    weights = {
        tensor.name: model.tensor(tensor).values
        for tensor in model.proto.graph.initializer
        if tensor.dims and model.tensor(tensor).kind.is_float
    }
    expected = {one.name: one for one in expected_inputs(model)}
    missing = [f"{name} {one.shown()}" for name, one in expected.items() if not one.optional and name not in inputs]
    if missing or inputs.keys() - expected.keys():
        unknown = ", ".join(sorted(inputs.keys() - expected.keys())) or "nothing else"
        raise BadInput(f"{path}: --inputs lacks {', '.join(missing) or 'nothing'}, and has {unknown}")
    lift(model.proto.graph, weights)  # first: what follows copies the graph
    proto = onnx.ModelProto()
    proto.CopyFrom(inliner.inline_local_functions(model.proto))
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(model.tensor(tensor).values()), tensor.name))
    for value in proto.graph.input:
        if value.name in inputs:  # a free axis has the length that it has here
            value.CopyFrom(
                helper.make_tensor_value_info(value.name, expected[value.name].number, inputs[value.name].shape)
            )
    constants_as_tensors(proto.graph)
    proto = shape_inference.infer_shapes(proto)
    fold(proto)
    return Adopted(proto, inputs, weights, {"source": path.name, "made of": proto.producer_name or "ONNX"})


def refuse(model: Model) -> None:
    """Raise BadInput for operators that refsd does not run, and for control flow: all of them in one message."""
    faults: dict[str, list[str]] = {}
    for number, node in enumerate(model.proto.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type, getattr(node, "overload", "")) in model.functions:
            continue
        version = model.opsets.get(domain, 0)
        name = f"{domain}::{node.op_type}" if domain else node.op_type
        if any(True for _ in subgraphs(node)):
            faults.setdefault(f"{name} (its path depends on values: export one path)", []).append(
                called(node, number)
            )
        elif find(domain, node.op_type, version) is None and body_schema(domain, node.op_type, version) is None:
            faults.setdefault(name, []).append(called(node, number))
    if faults:
        listed = "; ".join(
            f"{name}, {counted(len(of), 'node')}, first {of[0]}" for name, of in sorted(faults.items())
        )
        raise BadInput(
            f"{model.path}: refsd does not run {listed}. `refsd run-onnx --operators` lists what it runs"
        )


def _of_diffusers(name: str, config: Path | None, own: bool) -> Any:
    if config is None:
        raise BadInput(f"{_CLASS}{name}: give its --config FILE.json, and --inputs FILE of its arguments")
    with needing(["diffusers", "accelerate"], "adopt", _CLASS + name):
        diffusers, accelerate = (importlib.import_module(package) for package in ("diffusers", "accelerate"))
    known = [one for one in dir(diffusers) if "Model" in one or one.startswith("Autoencoder")]
    if name not in known:
        raise BadInput(f"diffusers {diffusers.__version__} has no class {name}{did_you_mean(name, known)}")
    settings = read_json(config)
    hollow = contextlib.nullcontext() if own else accelerate.init_empty_weights(include_buffers=False)
    try:
        with hollow:
            return getattr(diffusers, name).from_config(settings)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{config}: no config of {name}: {' '.join(str(error).split())[:300]}") from None


def _built(source: str) -> tuple[Any, Any]:
    """Run the function that builds a module."""
    file, colon, function = source.rpartition(":")
    path = Path(file)
    if Path(source).is_dir():
        raise BadInput(f"{source}: it has no {INDEX}; a network is adopted as {_CLASS}CLASS --config config.json")
    if Path(source).suffix == ".py":
        raise BadInput(f"{source}: name the function that returns (module, arguments), too: {source}:FUNCTION")
    if not colon or path.suffix != ".py" or not path.is_file():
        expected = f"FILE.py:FUNCTION, {_CLASS}CLASS, the folder of a pipeline, or a FILE.onnx"
        raise BadInput(f"{source!r}: expected {expected}, that is there")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise BadInput(f"{path}: it has no {function!r}{did_you_mean(function, dir(module))}")
        built = getattr(module, function)()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{source}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
    finally:
        sys.path.remove(str(path.parent.absolute()))
    if not isinstance(built, tuple) or len(built) != 2:
        raise BadInput(f"{source}: it returns {type(built).__name__}, expected (module, arguments)")
    return built
