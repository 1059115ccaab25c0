"""Ports of adopted modules: torch in float32, honest, or with one operation wrong; are they seen, placed and named?

    python -P tests/peers/adopted_ports.py                 ten classes, five wrong ports each
    python -P tests/peers/adopted_ports.py prx ernie

A port's taps are the outputs of its modules. The right place is the first of them that the bug changes.
"""

import atexit
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from refsd.adoption.capture import capture, module_outputs, outputs_of
from refsd.adoption.folder import Adopted, case_name, drawn, read, written
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.case import Case
from refsd.golden.report import Result
from refsd.goldens.judging import runner
from refsd.judges.model import ModelJudge
from refsd.numerics.profiles import TORCH_F32

sys.path[:0] = [str(Path(__file__).parent)]
from adopted_classes import CLASSES  # noqa: E402

NEWEST = (
    *("ernie", "ltx2", "minimax_h3", "longcat_image", "ovis_image"),
    *("ideogram4", "prx", "joyimage", "glm_image", "motif_video"),
)


class Port:
    """A module of torch in float32 as an engine, with its modules' outputs as taps.

    bug: a context manager inside which it computes wrongly
    """

    version = torch.__version__

    def __init__(self, case: Case, module: torch.nn.Module, call: Mapping[str, Any], taps):
        self.name, self._case, self._module, self._call, self._taps = "port", case, module, call, taps
        self.bug: Callable[[], Any] | None = None

    def refuses(self, case):
        return None

    def numerics(self, case):
        return TORCH_F32

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        return self.run_tapped(case, inputs)[0]

    def run_tapped(self, case, inputs):
        with torch.no_grad(), module_outputs(self._module) as given:
            if self.bug is None:
                answer = self._module(**self._call)
            else:
                with self.bug():
                    answer = self._module(**self._call)
        taps = {name: y.numpy() for name, y in given.items() if name in self._taps}
        return {name: y.numpy() for name, y in outputs_of(answer, self._case.inputs, given).items()}, taps


# (name, build) -> what an earlier test adopted, for an export takes up to half a minute.
_KEPT: dict[tuple[str, Any], tuple[Path, torch.nn.Module, Mapping[str, Any], set[str]]] = {}


def adopted(name: str, build=None, near: float = 1e-12) -> tuple[Case, Port]:
    """Adopt a class -> its case, and an honest port of it. near: how far torch's own float64 may be"""
    key = name, build or CLASSES[name]
    if key not in _KEPT:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
        place = Path(folder) / name
        _KEPT[key] = place, *_adopt(*key, place, near)
    place, *port = _KEPT[key]
    case = read(place)
    return case, Port(case, *port)


def _adopt(name: str, build, place: Path, near: float) -> tuple[torch.nn.Module, Mapping[str, Any], set[str]]:
    torch.manual_seed(0)
    module, call = build()
    captured = capture(module, call, lambda weight, shape: drawn(case_name(place), weight, shape).values())
    weights = {key: weight.shape for key, weight in captured.weights.items()}
    with written(place, Adopted(captured.model, captured.inputs, weights, captured.made), case_name(place)):
        pass
    case = read(place)
    truth, inputs = Reference().run(case, case.realize()), case.realize()
    for key, y in captured.answer.items():
        assert np.linalg.norm(truth[key] - y) <= near * np.linalg.norm(y), name
    with torch.no_grad():
        for key, weight in module.named_parameters():
            weight.copy_(torch.from_numpy(drawn(case.name, key, weight.shape).values()))
    return module.float(), call, {*ModelJudge().reference_taps(case, inputs)}


def judged(case: Case, port: Port) -> Result:
    truth = Reference().run(case, case.realize())
    (result,) = conform.run(runner(lambda case: truth), [port], [case])
    return result


class Once(TorchFunctionMode):
    """Give another result of the one call among those of a function that is in the middle.

    wrong: function, arguments -> the wrong result; None where the call is not meant
    """

    def __init__(self, name: str, wrong: Callable[..., Any], at: int):
        super().__init__()
        self._name, self._wrong, self._at, self.met = name, wrong, at, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == self._name:
            other = self._wrong(func, args, kwargs or {})
            if other is not None and other.shape == y.shape and not torch.equal(other, y):
                self.met += 1
                if self.met - 1 == self._at:
                    return other
        return y


def of_calls(name: str, wrong: Callable[..., Any]) -> Callable[[Port], Callable | None]:
    """Put a wrong result in place of the middle one of a function's calls."""

    def bug(port: Port):
        with Once(name, wrong, -1) as counting:
            port.run(None, {})
        return (lambda: Once(name, wrong, counting.met // 2)) if counting.met else None

    return bug


def of_weights(
    wanted: Callable[[str, torch.nn.Module], bool], change: Callable
) -> Callable[[Port], Callable | None]:
    """Change the middle one of those modules that are wanted."""

    def bug(port: Port):
        modules = dict(port._module.named_modules())
        met = [name for name, module in modules.items() if wanted(name, module)]
        if not met:
            return None
        name = met[len(met) // 2]

        @contextmanager
        def changed() -> Iterator[None]:
            undo = change(modules, name)
            try:
                yield
            finally:
                undo()

        return changed

    return bug


def _swap_data(module, field, value):
    parameter = getattr(module, field)
    kept, parameter.data = parameter.data, value
    return lambda: setattr(parameter, "data", kept)


def _eps(modules, name):
    module = modules[name]
    field = "eps" if hasattr(module, "eps") else "variance_epsilon"
    kept = getattr(module, field)
    setattr(module, field, 10 * kept)
    return lambda: setattr(module, field, kept)


def _other(modules, name):
    """The weights of the next layer of that shape."""
    own = modules[name].weight
    linear = (module for other, module in modules.items() if other != name and _linear(other, module))
    like = [module for module in linear if module.weight.shape == own.shape]
    undo = [_swap_data(modules[name], "weight", like[0].weight.data)]
    if modules[name].bias is not None and like[0].bias is not None:
        undo.append(_swap_data(modules[name], "bias", like[0].bias.data))
    return lambda: [one() for one in undo]


def _linear(name, module) -> bool:
    return isinstance(module, torch.nn.Linear)


def _square(name, module) -> bool:
    return _linear(name, module) and module.weight.shape[0] == module.weight.shape[1]


def _one_plus(func, args, kwargs):
    x, other = args
    return x if isinstance(other, (int, float)) and other == 1 else None


def _halves(func, args, kwargs):
    parts = args[0]
    joined = len(parts) == 2 and parts[0].shape == parts[1].shape
    return func([parts[1], parts[0]], *args[1:], **kwargs) if joined else None


class Bug(NamedTuple):
    """named: what a cause must say"""

    put: Callable[[Port], Callable | None]
    named: str


def _other_gelu(func, args, kwargs):
    return F.gelu(args[0], approximate="none" if kwargs.get("approximate") == "tanh" else "tanh")


def _unscaled(func, args, kwargs):
    return func(*args, **{**kwargs, "scale": 1.0})


def _norm(name, module) -> bool:
    return bool(getattr(module, "eps", 0)) and "norm" in name


def _with_bias(name, module) -> bool:
    return _linear(name, module) and module.bias is not None


def _transposed(modules, name):
    return _swap_data(modules[name], "weight", modules[name].weight.data.T.contiguous())


def _no_bias(modules, name):
    return _swap_data(modules[name], "bias", torch.zeros_like(modules[name].bias.data))


BUGS = {
    "eps ten times": Bug(of_weights(_norm, _eps), "eps"),
    "the other GELU": Bug(of_calls("gelu", _other_gelu), "GELU|erf|tanh"),
    "attention unscaled": Bug(of_calls("scaled_dot_product_attention", _unscaled), "scale|scores"),
    "a square matrix transposed": Bug(of_weights(_square, _transposed), "transpos"),
    "another layer's weights": Bug(of_weights(_square, _other), "weights of"),
    "SiLU is GELU": Bug(of_calls("silu", lambda func, args, kwargs: F.gelu(args[0])), "SiLU|GELU|gelu|sigmoid"),
    "no bias": Bug(of_weights(_with_bias, _no_bias), "bias"),
    "RoPE turns the other way": Bug(
        of_calls("neg", lambda func, args, kwargs: args[0]), "other way|turned|RoPE|other sign"
    ),
    "scale without 1 +": Bug(of_calls("add", _one_plus), "left out|scale"),
    "parts joined in the other order": Bug(
        of_calls("cat", _halves), "order|swapped|joined|exchanged|read from concat:"
    ),
}


def ports_of(name: str, port: Port, count: int) -> Iterator[tuple[str, Callable]]:
    """Yield (bug, context manager) of so many bugs that the class can have, other ones for each class."""
    at, names = sorted(CLASSES).index(name), [*BUGS]
    for bug in names[at % len(names) :] + names[: at % len(names)]:
        put = BUGS[bug].put(port)
        if put is not None and count:
            count -= 1
            yield bug, put


def first_changed(case: Case, port: Port) -> str:
    """The first tap that the port's bug changes; the first output if it changes none."""
    bug, port.bug = port.bug, None
    right = port.run_tapped(case, {})
    port.bug = bug
    wrong = port.run_tapped(case, {})
    names = [name for of in (1, 0) for name in right[of] if not np.array_equal(right[of][name], wrong[of][name])]
    return names[0] if names else ""


def main(names: list[str]) -> None:
    seen = placed = named = total = false = 0
    for name in names or NEWEST:
        case, port = adopted(name)
        honest = judged(case, port)
        false += not honest.conforms
        print(f"{name}: honest {honest.status} {honest.margin:.3g} {honest.place}", flush=True)
        for bug, put in ports_of(name, port, 5):
            port.bug = put
            place, result = first_changed(case, port), judged(case, port)
            port.bug = None
            told = any(re.search(BUGS[bug].named, cause) for cause in result.causes)
            total, seen = total + 1, seen + (not result.conforms)
            placed, named = placed + (result.place == place), named + told
            causes = [*result.causes][:3] or [*result.looks][:2]
            at = f"{result.status} {result.margin:.3g}, at {result.place} (right: {place})"
            print(f"  {bug}: {at}: {causes}{' named' if told else ''}", flush=True)
    wrong = f"{total} wrong ports: {seen} seen, {placed} placed, {named} named"
    print(f"{wrong}; {false} of {len(names or NEWEST)} honest ports fail")


if __name__ == "__main__":
    main(sys.argv[1:])
