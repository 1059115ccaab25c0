"""Export a torch module as a graph in float64, its weights as inputs, all named by the module tree. Needs torch."""

import contextlib
import io
import logging
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from refsd.adoption.taps import name_outputs
from refsd.adoption.tidying import tidy
from refsd.numerics.errors import BadInput

_OPSET = 23
# Functions that only move numbers -> the place of their argument `dim`; 0: they have none.
_OF_PARTS = {
    torch.Tensor.__getitem__: 0,
    torch._C._nn.pad_sequence: 0,
    torch.cat: 1,
    torch.stack: 1,
    torch.Tensor.unsqueeze: 1,
    torch.unsqueeze: 1,
    torch.Tensor.squeeze: 1,
    torch.squeeze: 1,
    torch.Tensor.split: 2,
    torch.split: 2,
}
# Those that are given sizes, of which the last is that of the parts.
_OF_SIZES = (torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.expand)
_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class Weight(NamedTuple):
    """A parameter of a module. read: returns its values, floats as float32; each time anew, so that none is kept"""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class Captured(NamedTuple):
    """
    model:   the graph, its weights among its inputs
    inputs:  name -> values
    weights: name -> shape, and what reads the values
    answer:  output -> what torch gives in float64
    made:    of what, and with which programs
    """

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    weights: dict[str, Weight]
    answer: dict[str, np.ndarray]
    made: dict[str, str]


def capture(module: Any, call: Any, redraw: Callable[[str, tuple[int, ...]], np.ndarray] | None = None) -> Captured:
    """Run a module in float64 and export it. Of its weights one at a time is expanded, so that large ones fit.

    call:   its arguments by name, or a sequence of them
    redraw: name and shape of a weight -> its values; None: the module keeps its own

    Raises BadInput for a module that torch cannot run or export so.
    """
    if not isinstance(module, torch.nn.Module) or not isinstance(call, (Mapping, tuple, list)):
        raise BadInput(
            f"{type(module).__name__}, {type(call).__name__}: expected a torch.nn.Module and its arguments"
        )
    arguments, named = ((), dict(call)) if isinstance(call, Mapping) else (tuple(call), {})
    arguments, named = pytree.tree_map_only(np.ndarray, lambda x: torch.from_numpy(np.array(x)), (arguments, named))
    arguments, named = pytree.tree_map_only(torch.Tensor, _double, (arguments, named))
    module = module.eval().requires_grad_(False)
    weights = {}
    for name, own in module.named_parameters():
        if own.is_floating_point():
            read = partial(_values, own) if redraw is None else partial(redraw, name, tuple(own.shape))
            weights[name] = Weight(tuple(own.shape), read)
    name = type(module).__qualname__
    running = refused(f"torch cannot run {name}")
    with _hollow(module) as hollow, _without_cache(module):
        module.double()  # its buffers
        streamed = _Streamed({id(hollow[key]): weight.read for key, weight in weights.items()})
        with running, torch.no_grad(), quiet(), _Widened(), module_outputs(module) as given, streamed:
            answer = module(*arguments, **named)
        inputs = _leaves({**dict(enumerate(arguments)), **named}, "x")
        answers = outputs_of(answer, inputs, given)
        if not answers:
            raise BadInput(f"{name}: it returns {type(answer).__name__}, expected tensors")
        try:
            program, model = _exported(module, arguments, named, weights, contextlib.nullcontext())
        except BadInput:  # such as a norm of torch that refuses to compute float64 in float32
            program, model = _exported(module, arguments, named, weights, _Widened())
    numbers = pytree.tree_leaves([(node.args, node.kwargs) for node in program.graph.nodes])
    tidy(model, [*inputs], [*answers], weights, {x for x in numbers if isinstance(x, float)})
    name_outputs(model, inputs, {name: weight.read for name, weight in weights.items()}, given)
    held = {tensor.name for tensor in model.graph.input}
    return Captured(
        model,
        {name: _values(x) for name, x in inputs.items()},
        {name: weight for name, weight in weights.items() if name in held},
        {name: _values(y) for name, y in answers.items()},
        programs(module),
    )


@contextlib.contextmanager
def _hollow(module: torch.nn.Module) -> Iterator[dict[str, torch.nn.Parameter]]:
    """Put parameters of float64 in the place of a module's in the block, whose memory is never touched."""
    hollow = {
        id(own): torch.nn.Parameter(torch.empty(own.shape, dtype=torch.float64), requires_grad=False)
        for own in module.parameters()
        if own.is_floating_point()
    }
    found = [(part, key, own) for part in module.modules() for key, own in part._parameters.items()]
    places = [(part, key, own) for part, key, own in found if id(own) in hollow]
    names = {name: hollow[id(own)] for name, own in module.named_parameters() if id(own) in hollow}
    for part, key, own in places:
        part._parameters[key] = hollow[id(own)]
    try:
        yield names
    finally:
        for part, key, own in places:
            part._parameters[key] = own


@contextlib.contextmanager
def _without_cache(module: torch.nn.Module) -> Iterator[None]:
    """Keep transformers' language models from returning keys and values, which torch cannot export."""
    found = [
        config for part in module.modules() if getattr(config := getattr(part, "config", None), "use_cache", 0)
    ]
    configs = {id(config): config for config in found}.values()
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


class _Streamed(TorchDispatchMode):
    """Inside, a hollow parameter has its values in each operation that it is an argument of.

    weights: id of the parameter -> what reads the values
    """

    def __init__(self, weights: Mapping[int, Callable[[], np.ndarray]]):
        super().__init__()
        self._weights = weights

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*pytree.tree_map_only(torch.nn.Parameter, self._filled, args), **(kwargs or {}))

    def _filled(self, x: torch.nn.Parameter) -> torch.Tensor:
        read = self._weights.get(id(x))
        return x if read is None else torch.from_numpy(np.array(read(), np.float64))


def programs(of: Any) -> dict[str, str]:
    """Return the class of a module or a pipeline, and the versions of torch and of the class's package."""
    package = type(of).__module__.partition(".")[0]
    versions = {"torch": str(torch.__version__)}
    with contextlib.suppress(metadata.PackageNotFoundError):  # a file of the user's is no package
        versions[package] = metadata.version(package)
    return {"made of": type(of).__qualname__, **versions}


def outputs_of(answer: Any, inputs: Collection[str], taps: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that a module returns by their names in the graph.

    inputs: whose names are taken
    taps:   of `module_outputs`, whose names are taken too, but for a tap that is the output
    """

    def place(y: torch.Tensor) -> tuple[Any, ...]:
        return y.data_ptr(), y.shape, y.stride()

    def all_free(answers: Mapping[str, torch.Tensor]) -> bool:
        return all(name not in taps or place(taps[name]) == place(y) for name, y in answers.items())

    answers = {}
    for name in ("out", "output"):
        answers = _leaves(answer, name)
        if len(answers) == 1 or answers.keys() & {*inputs} or not all_free(answers):
            answers = {name if len(answers) == 1 else f"{name}.{own}": y for own, y in answers.items()}
        if all_free(answers):
            break
    return answers


@contextlib.contextmanager
def module_outputs(module: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield what each module inside gives, by the names of taps; the dictionary is filled while the block runs.

    A module that gives several tensors has NAME.0, NAME.1, ...; the second call of one is NAME.1 too.
    """
    given: dict[str, torch.Tensor] = {}
    seen: Counter[str] = Counter()

    def listen(name: str, output: Any) -> None:
        parts = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        for i, part in enumerate(parts):
            key = name if len(parts) == 1 else f"{name}.{i}"
            given[f"{key}.{seen[key]}" if seen[key] else key] = part.detach()
            seen[key] += 1

    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: listen(name, output))
        for name, part in module.named_modules()
        if name
    ]
    try:
        yield given
    finally:
        for hook in hooks:
            hook.remove()


class _Widened(TorchFunctionMode):
    """Inside, torch computes in float64 what a module asks of it in float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args, kwargs = pytree.tree_map_only(torch.dtype, lambda t: _WIDER.get(t, t), (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


class _ByParts(TorchFunctionMode):
    """Inside, complex rows are taken, and joined, as real and imaginary parts: ONNX has no complex numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = [x for x in pytree.tree_leaves(args[:1]) if isinstance(x, torch.Tensor)]
        if func not in (*_OF_PARTS, *_OF_SIZES) or not leaves or not all(x.is_complex() for x in leaves):
            return func(*args, **kwargs)
        first, *rest = args
        if func in _OF_SIZES and rest and not isinstance(rest[0], torch.dtype):
            rest = [*(rest[0] if isinstance(rest[0], (tuple, list)) else rest), 2]
        at = _OF_PARTS.get(func, 0) - 1
        if 0 <= at < len(rest) and rest[at] < 0:  # the parts are a new last axis
            rest[at] -= 1
        if kwargs.get("dim", 0) < 0:
            kwargs = {**kwargs, "dim": kwargs["dim"] - 1}
        if func is torch.Tensor.__getitem__:  # an index counts its axes behind an Ellipsis from the end
            index = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
            rest[0] = (*index, slice(None)) if any(i is Ellipsis for i in index) else rest[0]
        y = func(pytree.tree_map(torch.view_as_real, first), *rest, **kwargs)
        return pytree.tree_map(lambda part: torch.view_as_complex(part.contiguous()), y)


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise BadInput for what another program refuses in the block. what: "torch cannot run NAME" """
    try:
        yield
    except BadInput:
        raise
    except GuardOnDataDependentSymNode as error:
        raise BadInput(f"{what}: its path depends on values{_where(error)}") from error
    except Exception as error:
        last = error
        while last.__cause__ is not None:  # which says what the exporter lacks
            last = last.__cause__
        words = f"{type(last).__name__}: {' '.join(str(last).split())[:300]}{_where(error)}"
        raise BadInput(f"{what}: {words}") from error


def _where(error: Exception) -> str:
    """Return ", at FILE:LINE `its text`" of the last line of a traceback that is neither torch's nor refsd's."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(ours)]
    return f", at {Path(lines[-1].filename).name}:{lines[-1].lineno} `{lines[-1].line}`" if lines else ""


def _exported(
    module: Any, arguments: tuple, named: dict, weights: Collection[str], inside: Any
) -> tuple[Any, onnx.ModelProto]:
    """Return a module as a program of torch and as a graph, which has the weights among its inputs."""
    with refused(f"torch cannot export {type(module).__qualname__}"), torch.no_grad(), quiet():
        with inside, _ByParts():
            program = torch.export.export(module, arguments, named, strict=False)
        exported = torch.onnx.export(program, dynamo=True, optimize=False, opset_version=_OPSET, verbose=False)
    assert exported is not None
    graph, first = exported.model.graph, {id(own): name for name, own in module.named_parameters()}
    # A parameter of two names may have the second one here.
    names = {name: first[id(own)] for name, own in module.named_parameters(remove_duplicate=False)}
    taken: dict[str, Any] = {}
    for name in [name for name in graph.initializers if names.get(name) in weights]:
        weight = graph.initializers.pop(name)
        if names[name] in taken:
            weight.replace_all_uses_with(taken[names[name]])
            continue
        weight.name, weight.const_value = names[name], None
        graph.inputs.append(weight)
        taken[names[name]] = weight
    return program, exported.model_proto


def _double(x: torch.Tensor) -> torch.Tensor:
    """Return floats as float64, with the values that float32 holds."""
    return x.detach().cpu().float().double() if x.is_floating_point() else x.detach().cpu()


def _values(x: torch.Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()


def _leaves(tree: Any, alone: str) -> dict[str, torch.Tensor]:
    """Return the tensors of arguments or results by their paths: "added.time_ids". alone: name of a single one"""
    leaves, _ = pytree.tree_flatten_with_path(dict(tree) if isinstance(tree, Mapping) else tree)
    tensors = [(".".join(str(_key(p)) for p in path), x) for path, x in leaves if isinstance(x, torch.Tensor)]
    if len(tensors) == 1 and tensors[0][0] in ("", "0"):
        return {alone: tensors[0][1]}
    return {f"{alone}.{name}" if name.isdecimal() else name: x for name, x in tensors}


def _key(part: Any) -> Any:
    return next(getattr(part, field) for field in ("key", "idx", "name") if hasattr(part, field))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch and diffusers log, print on stderr and warn of."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
