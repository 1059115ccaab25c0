"""Run `refsd run-onnx`: gather inputs, evaluate, write complete files."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from refsd import __version__
from refsd.engines.dump.engine import read_dump
from refsd.files.tensor_files import check_name, write_arrays
from refsd.golden.output_file import Outputs
from refsd.golden.recipe import Recipe, realize
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import memory
from refsd.onnx.evaluate import ELEMENT_TYPES, NUMERICS, OPERATORS, Expected, evaluate, expected_inputs, open_graph
from refsd.onnx.evaluate.budget import Budget
from refsd.onnx.evaluate.check import body_schema
from refsd.onnx.evaluate.file import Model, open_model, parse
from refsd.progress.compiling import compile_progress
from refsd.progress.taps import ShownTaps

_RECIPE = "recipe"


class Request(NamedTuple):
    """Command-line arguments of `refsd run-onnx`."""

    model: Path
    inputs: list[str]
    out: Path | None
    taps: Path | None
    tap: str
    numerics: str
    exact: bool
    dims: list[str]
    memory: float | None
    seconds: float
    json: bool


def run(request: Request) -> None:
    """Evaluate the graph, write its outputs. Raises BadInput, in one line, before anything is written."""
    if request.numerics not in NUMERICS:
        raise BadInput(f"--numerics {request.numerics}: expected {' or '.join(NUMERICS)}")
    if request.memory is not None and not 0 < request.memory < 1e6:
        raise BadInput(f"--memory {request.memory}: expected GB")
    if not 0 < request.seconds < 1e9:
        raise BadInput(f"--seconds {request.seconds}: expected a number above 0")
    model = open_graph(request.model)
    limit = memory() // 2 if request.memory is None else int(request.memory * 1e9)
    dtype = NUMERICS[request.numerics].compute_dtype
    inputs = _gathered(model, request.inputs, request.dims, dtype, Budget(limit))
    outputs = Outputs()
    for flag, path in (("--out", request.out), ("--taps", request.taps)):
        if path is not None:
            check_name(path, [o.name for o in model.proto.graph.output] if flag == "--out" else None)
            outputs.add(flag, path)
    shown = ShownTaps(request.model.name, request.tap if request.taps else "", True)
    with compile_progress(), shown as taps:
        results = evaluate(model, inputs, taps, NUMERICS[request.numerics], request.exact, limit, request.seconds)
    metadata = {
        "tool": "refsd run-onnx",
        "version": __version__,
        "model": request.model.name,
        "numerics": request.numerics,
        "casts": "ignored" if request.exact else "rounded",
    }
    if request.out is not None:
        write_arrays(request.out, results.outputs, metadata)
    if request.taps is not None:
        write_arrays(request.taps, taps, metadata)
    _report(request, results, len(taps))


def operators() -> list[str]:
    """The operators that refsd runs itself, and those that run by ONNX's definition of them."""
    own = sorted(f"{domain}::{name}" if domain else name for domain, name in OPERATORS)
    newest = onnx.defs.onnx_opset_version()
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain} - set(own)
    defined = [name for name in names if body_schema("", name, newest) is not None]
    return [*own, *(f"{name} (by ONNX's definition)" for name in sorted(defined))]


def gathered(path: Path, settings: Sequence[str], dims: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the inputs of a graph that settings like --inputs give; floats that are drawn are float32."""
    return _gathered(open_model(path), settings, dims, np.dtype(np.float32), Budget(memory() // 2))


def _gathered(
    model: Model, settings: Sequence[str], dim: Sequence[str], dtype: np.dtype, budget: Budget
) -> dict[str, np.ndarray]:
    expected = {one.name: one for one in expected_inputs(model)}
    found: dict[str, np.ndarray] = {}
    dims = _dims(dim)

    def drawn(one: Expected) -> np.ndarray:
        try:
            return _drawn(one, dims, dtype, budget)
        except BadInput as error:
            raise BadInput(f"{model.path}: {error}") from None

    for setting in settings:
        name, equals, value = setting.partition("=")
        if setting == _RECIPE:
            missing = [one for one in expected.values() if one.name not in found and not one.optional]
            found |= {one.name: drawn(one) for one in missing}
        elif equals and not Path(setting).exists():
            if name not in expected:
                raise BadInput(
                    f"--inputs {setting}: {model.path} has no input {name!r}{did_you_mean(name, expected)}; there "
                    f"are {', '.join(expected)}"
                )
            found[name] = drawn(expected[name]) if value == _RECIPE else _one(Path(value))
        elif Path(setting).is_dir() and any(Path(setting).glob("input_*.pb")):
            found |= _test_data(Path(setting), model, list(expected))
        else:
            found |= read_dump(Path(setting))
    return found


def _one(path: Path) -> np.ndarray:
    arrays = read_dump(path)
    if len(arrays) != 1:
        raise BadInput(f"{path}: {len(arrays)} tensors; give the whole file as --inputs {path}")
    return next(iter(arrays.values()))


def _test_data(folder: Path, model: Model, names: list[str]) -> dict[str, np.ndarray]:
    """Inputs of ONNX's backend test folders, input_0.pb, ..., in the order of the graph's inputs."""
    found = {}
    for path in sorted(folder.glob("input_*.pb")):
        number = path.stem.removeprefix("input_")
        if not number.isdecimal() or int(number) >= len(names):
            raise BadInput(f"{path}: the graph has {len(names)} inputs")
        proto = parse(path, onnx.TensorProto(), "a tensor of ONNX")
        try:
            found[names[int(number)]] = model.tensor(proto).values()
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
    return found


def _dims(settings: Sequence[str]) -> dict[str, int]:
    dims = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not value.isdecimal() or len(value) > 9:
            raise BadInput(f"--dim {setting}: expected NAME=N")
        dims[name] = int(value)
    return dims


def _drawn(one: Expected, dims: Mapping[str, int], dtype: np.dtype, budget: Budget) -> np.ndarray:
    """Draw an input by its recipe: a bell for floats; integers in 0..8; true and false."""
    kind = ELEMENT_TYPES[one.number]
    if one.shape is None:
        raise BadInput(f"input {one.name!r} has no declared shape: give it as --inputs {one.name}=FILE.npy")
    shape = tuple(dims.get(n, -1) if isinstance(n, str) else -1 if n is None else n for n in one.shape)
    if min(shape, default=0) < 0:
        raise BadInput(f"input {one.name!r} is {one.shown()}: say how long its axes are, with --dim NAME=N")
    recipe = Recipe(shape, "i32", "token_ids", 0, n=2 if kind.name == "bool" else 9)
    held = kind.held
    if held is None:
        recipe, held = Recipe(shape, "f32"), dtype
    try:
        budget.room(shape, 4 + held.itemsize)
    except BadInput as error:
        raise BadInput(f"input {one.name!r}: {error}") from None
    values = realize(recipe, one.name).values().astype(held, copy=False)
    budget.take(values.nbytes)
    return values


def _report(request: Request, results, taps: int) -> None:
    rows = []
    for name, y in results.outputs.items():
        wide = np.asarray(y, np.float64)
        known = wide.size > 0
        rows.append(
            {
                "name": name,
                "declared": results.types[name],
                "shape": list(y.shape),
                "min": float(wide.min()) if known else None,
                "max": float(wide.max()) if known else None,
                "rms": float(np.sqrt(np.mean(wide**2))) if known else None,
                "crc32": f"{zlib.crc32(np.ascontiguousarray(y).tobytes()):08x}",
            }
        )
    if request.json:
        numbers = {"nodes": results.nodes, "peak_bytes": results.peak, "taps": taps}
        print(json.dumps({"model": str(request.model), "numerics": request.numerics, **numbers, "outputs": rows}))
        return
    for row in rows:
        spread = "" if row["min"] is None else f"  min {row['min']:.6g}  max {row['max']:.6g}  rms {row['rms']:.6g}"
        print(f"{row['name']}: {row['declared']} {row['shape']}{spread}")
    print(f"{results.nodes} nodes, {results.peak / 1e6:.1f} MB at most{f', {taps} taps' if taps else ''}")
