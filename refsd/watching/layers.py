"""Judge a diffusers or transformers module while it runs, with its own weights and its own inputs.

    with refsd.watch(pipe.transformer) as report:
        pipe("a lovely cat")

Inside the block, forward hooks copy each layer's output. After a call, the reference computes every layer from the
module's own outputs of the preceding layers, in float64 and with the rounding of the module's dtype, and judges
the layer's output (refsd/causes/model/following.py). An error therefore counts only in the layer that makes it, and
the report names the first wrong layer.
"""

import contextlib
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsd.components import load
from refsd.engines.torch.models import MODELS, READERS
from refsd.engines.torch.state import activations_of, array, living_component
from refsd.engines.torch.taps import Bypassed, listening, modules_of_taps
from refsd.golden.case import Case
from refsd.golden.examination import Examination
from refsd.golden.judge import Standard
from refsd.golden.metrics import INFINITE
from refsd.golden.verdict import judge_output
from refsd.golden.wording import counted
from refsd.judges.model import ModelJudge
from refsd.module import WeightCache
from refsd.networks.original import Arguments, Reader
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import PROFILES, TORCH_BF16, TORCH_F16, TORCH_F32, Numerics
from refsd.numerics.tensor import stored
from refsd.weights.checkpoint import Checkpoint

_NUMERICS = {"torch.float32": TORCH_F32, "torch.float16": TORCH_F16, "torch.bfloat16": TORCH_BF16}
# If judging a call took longer than this in seconds, no known bugs are tried: each needs another run.
_PATIENCE = 10.0
# A module that is called several times has a tap for each call, with the call's number after the name.
_REPEATED = re.compile(r"\.\d+$")


class Judged(NamedTuple):
    """The verdict on one call of a component.

    what:    the component, and the number of the call
    taps:    number of judged layer outputs (taps)
    place:   the first wrong tap, by the reference's name
    module:  the same, by the names of the module's submodules
    margin:  error / limit of the first wrong tap; the greatest of all taps if every tap is right
    causes:  known bugs that explain the first wrong tap, the likeliest first
    reason:  one line; empty if all taps are right
    refused: the reason why the call was not judged; empty if it was
    seconds: time that judging took
    unseen:  blocks that ran without their layers, a line each
    """

    what: str
    taps: int = 0
    place: str = ""
    module: str = ""
    margin: float = 0.0
    causes: tuple[str, ...] = ()
    reason: str = ""
    refused: str = ""
    seconds: float = 0.0
    unseen: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reason and not self.refused

    def __str__(self) -> str:
        if self.refused:
            return f"{self.what}: not judged: {self.refused}"
        judged = f"{counted(self.taps, 'result')} judged in {self.seconds:.1f} s"
        if self.passed:
            right = f"{self.what}: right; {judged}, the nearest to its limit at {self.margin:.2f} of it"
            return "\n".join([right, *(f"  {line}" for line in self.unseen)])
        lines = [f"{self.what}: WRONG at {self.place}{f' ({self.module})' if self.module else ''}; {judged}"]
        lines.append(f"  {self.reason}")
        lines += [f"  the reference agrees if {cause}" for cause in self.causes]
        return "\n".join([*lines, *(f"  {line}" for line in self.unseen)])


class Report:
    """The verdicts on a module's calls.

    title:  the module's class
    calls:  verdicts, in the order of the calls
    unseen: number of further calls that ran without being judged
    """

    def __init__(self, title: str):
        self.title = title
        self.calls: list[Judged] = []
        self.unseen = 0

    @property
    def passed(self) -> bool:
        """True if at least one call was judged, and all judged calls are right."""
        return bool(self.calls) and all(call.passed for call in self.calls)

    @property
    def first(self) -> Judged | None:
        """The first call that is wrong or could not be judged."""
        return next((call for call in self.calls if not call.passed), None)

    def __str__(self) -> str:
        lines = [str(call) for call in self.calls] or ["it was not called"]
        more = [f"{counted(self.unseen, 'further call')} not judged"] if self.unseen else []
        return "\n".join(f"{self.title}: {line}" for line in [*lines, *more])


class _LivingJudge(ModelJudge):
    """A ModelJudge that computes with the watched module's weights instead of recipe weights."""

    def __init__(self, checkpoint: Checkpoint, component: str):
        super().__init__()
        self._checkpoint, self._component = checkpoint, component

    def _module(self, case, inputs, arithmetic, kept: WeightCache | None = None):
        m, params = load(self._checkpoint, self._component, arithmetic, kept)
        return m, {name: tensor.values() for name, tensor in inputs.items()}, {**params, **case.params}


@contextlib.contextmanager
def watch_layers(
    module,
    calls: int = 1,
    causes: bool = True,
    show: Callable[[str], Any] | None = print,
    numerics: str | None = None,
) -> Iterator[Report]:
    """Judge a module's calls inside the `with` block, layer by layer. Yields the Report.

    module: a diffusers or transformers model of a class that READERS lists, on any device, in float32, float16 or
            bfloat16
    calls:  number of calls of each component to judge; further calls only run
    causes: try known bugs as explanations of the first wrong layer, if that takes seconds rather than minutes
    show:   called with the report's text at the end; None: do not show it
    numerics: a profile that stores numbers as the module does; None: torch's own, of its dtype

    Raises BadInput for a module that refsd does not run, and a profile that is none of its dtype.
    """
    title = type(module).__name__
    if title not in READERS:
        raise BadInput(
            f'refsd.watch knows no {title}; it knows {", ".join(READERS)}. by="operations" judges any module'
        )
    component, profile = living_component(module), _numerics_of(module, numerics)
    report = Report(title)
    watchers = [_Watcher(module, reader, component, profile, report, calls, causes) for reader in READERS[title]]
    with contextlib.ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher.attached())
        yield report
    if show is not None:
        show(str(report))


def _numerics_of(module, requested: str | None) -> Numerics:
    dtype = str(module.dtype)
    if dtype not in _NUMERICS:
        raise BadInput(f"{type(module).__name__} computes in {dtype}; refsd judges {', '.join(_NUMERICS)}")
    torchs = _NUMERICS[dtype]
    fits = {name: profile for name, profile in PROFILES.items() if profile.storage == torchs.storage}
    if requested is not None and requested not in fits:
        raise BadInput(f"numerics {requested!r}: {type(module).__name__} is in {dtype}: expected {', '.join(fits)}")
    if requested is not None:
        return fits[requested]
    activations = activations_of(module)
    if activations and torchs.storage != "bfloat16":
        raise BadInput(
            f"{type(module).__name__} rounds inputs to few bits, in {dtype}: one that falls to the other "
            "side of a tie moves a whole row, by far more than results are rounded. refsd judges that in bfloat16, "
            'and with by="operations" in any dtype'
        )
    return replace(torchs, activations=activations)


class _Watcher:
    """Record the calls of one component of a module through forward hooks, and judge each when it ends."""

    def __init__(self, module, reader: Reader, component, numerics: Numerics, report: Report, calls, causes):
        self._module, self._reader, self._component = module, reader, component
        self._numerics, self._report, self._left, self._causes = numerics, report, calls, causes
        self._count = 0
        self._places: dict[str, str] = {}
        self._listening: contextlib.ExitStack | None = None
        self._taps: dict[str, Any] = {}
        self._bypassed: dict[str, Bypassed] = {}
        self._arguments: Arguments | BadInput | None = None

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        first, last = (self._submodule(names) for names in (self._reader.first, self._reader.last))
        handles = [
            first.register_forward_pre_hook(self._begin, with_kwargs=True),
            last.register_forward_hook(self._end, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._stop()

    def _submodule(self, names: tuple[str, ...]):
        found = (self._module if not name else getattr(self._module, name, None) for name in names)
        return next(module for module in found if module is not None)

    def _begin(self, module, args, kwargs) -> None:
        self._stop()
        if self._left <= 0:
            self._report.unseen += 1
            return
        self._left -= 1
        self._count += 1
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        given = {**bound.arguments, **bound.arguments.pop("kwargs", {})}
        try:
            read = self._reader.read(self._module, given)
            copies = {name: tensor.detach().clone() for name, tensor in read.inputs.items()}
            self._arguments = read._replace(inputs=copies)
        except BadInput as error:
            self._arguments = error
        self._listening = contextlib.ExitStack()
        self._bypassed = {}
        sources = self._component.weights.sources
        self._taps = self._listening.enter_context(listening(self._module, sources, self._bypassed))

    def _end(self, module, args, y) -> None:
        if self._listening is None:
            return
        self._stop()
        what = f"{self._reader.component}, call {self._count}"
        arguments, taps = self._arguments, self._taps
        self._arguments, self._taps = None, {}
        if y is None or arguments is None:
            self._report.calls.append(Judged(what, refused="the call ended by an exception"))
        elif isinstance(arguments, BadInput):
            self._report.calls.append(Judged(what, refused=str(arguments)))
        else:
            try:
                self._report.calls.append(self._judged(what, arguments, taps, y))
            except BadInput as error:
                self._report.calls.append(Judged(what, refused=str(error)))

    def _stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _judged(self, what: str, arguments: Arguments, taps: dict[str, Any], y) -> Judged:
        begun = time.perf_counter()
        name = self._reader.component
        laid_out = MODELS[f"model/{name}"].laid_out(taps, arguments.inputs)
        found = {tap: array(value) for tap, value in {**laid_out, **arguments.outputs(y)}.items()}
        taps.clear()
        inputs = {key: stored(array(value)) for key, value in arguments.inputs.items()}
        case = Case(what, f"model/{name}", {}, arguments.params)
        weights = self._component
        checkpoint = Checkpoint(weights.weights.file.path, None, None, "", {weights.name: weights}, [], [], [])
        judge = _LivingJudge(checkpoint, name)
        blocks, unseen = self._of_blocks(judge, case, inputs)
        found |= blocks
        trace = judge.trace(case, inputs, found, self._numerics)
        seconds = time.perf_counter() - begun
        examined = Examination(trace, [])
        verdict = examined.verdict
        margin = max(
            (judge_output(m).margin for m in trace.taps if m.output not in examined.unseen), default=INFINITE
        )
        overflow = next((m for m in trace.taps if m.overflowed), None)
        if verdict.passed and overflow is None:
            return Judged(what, len(trace.taps), margin=margin, seconds=seconds, unseen=unseen)
        if verdict.passed and overflow is not None:
            own = self._modules(overflow.output)
            reason = judge_output(overflow).reason
            judged = Judged(what, len(trace.taps), overflow.output, own, margin, reason=reason, seconds=seconds)
            return judged._replace(unseen=unseen)
        place = examined.place
        reasons = [verdict.reason, examined.way]
        causes: Sequence[str] = ()
        if self._causes and place and seconds < _PATIENCE:
            answers = {k: v for k, v in found.items() if k not in trace.names}
            why = judge.explain(Standard(case, inputs, answers, {}, self._numerics), found, place)
            unknown = () if why.causes else ("no cause was found",)
            causes, reasons = why.causes, [*reasons, *(why.looks[:2] or unknown)]
        elif self._causes and place:
            reasons.append(f"no cause was sought: to follow the call took more than {_PATIENCE:.0f} s")
        own = self._modules(place)
        seconds = time.perf_counter() - begun
        reason = "; ".join(filter(None, reasons))
        return Judged(what, len(trace.taps), place, own, verdict.margin, tuple(causes), reason, "", seconds, unseen)

    def _of_blocks(self, judge: ModelJudge, case: Case, inputs) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return outputs of blocks that ran without their layers, by the reference's names; and a line on each."""
        found: dict[str, np.ndarray] = {}
        lines = []
        reference = judge.reference_taps(case, inputs) if self._bypassed else {}
        for module, of in self._bypassed.items():
            outputs = [array(y) for y in of.outputs]
            taps = _paired(outputs, {name: reference[name] for name in _outputs_of(of.block, [*reference])})
            how = "its output is judged" if taps else "what it computes is judged with the layer after it"
            lines.append(f"not seen: {module} ran without its {counted(of.layers, 'layer')}; {how}")
            self._places |= dict.fromkeys(taps, module)
            found |= taps
        return found, tuple(lines)

    def _modules(self, tap: str) -> str:
        """The module's own names of what a tap comes from."""
        if tap in self._places:
            return self._places[tap]
        modules = modules_of_taps(self._module, self._component.weights.sources)
        return ", ".join(modules.get(tap) or modules.get(_REPEATED.sub("", tap), ()))


def _outputs_of(block: str, taps: list[str]) -> list[str]:
    """List the taps that hold a block's output: its own, its parts, or else those of the blocks in it."""
    if not block or block in taps:
        return [block] if block else []
    inside = [name.removeprefix(f"{block}.") for name in taps if name.startswith(f"{block}.")]
    parts = [name for name in inside if name.isdigit()]
    blocks = [name for name in inside if "." not in name and any(other.startswith(f"{name}.") for other in inside)]
    return [f"{block}.{name}" for name in parts or blocks]


def _paired(outputs: list[np.ndarray], taps: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give a block's outputs the names of the reference's: those of the same size, of several the nearest in value.

    A reference with one output for text and picture has them joined, text first.
    """
    if len(taps) == 1 and len(outputs) > 1 and len({y.shape[:1] + y.shape[2:] for y in outputs}) == 1:
        outputs = [np.concatenate(outputs, axis=1)]
    found: dict[str, np.ndarray] = {}
    for y in outputs:
        near = {
            name: float(np.linalg.norm(np.nan_to_num(y).ravel() - tap.ravel()))
            for name, tap in taps.items()
            if tap.size == y.size and name not in found
        }
        if near:
            name = min(near, key=near.__getitem__)
            found[name] = y.reshape(taps[name].shape)
    return found
