"""Known bugs of whole models, each as a change of the reference: to test the cases with, and to name an engine's.

What is wrong with weights, inputs or operations is tried on the reference as it is written; no model knows of it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from refsd.components import forward
from refsd.engine import Reference, one_answer
from refsd.golden.arithmetic import Arithmetic
from refsd.golden.case import Case
from refsd.golden.conform import measure_case
from refsd.golden.engines import ModelFiles
from refsd.golden.numerics import FLOAT64, Numerics
from refsd.golden.tensor import StoredTensor, stored
from refsd.golden.verdict import judge
from refsd.module import Module

Inputs = Mapping[str, np.ndarray]
# The name of a weight -> the one that is taken for it; its values -> what they are taken for. None: it is right.
Renamed = Callable[[str], str | None]
Revalued = Callable[[str, np.ndarray], np.ndarray | None]


class _OtherPairs(Arithmetic):
    rope, rope_halves = Arithmetic.rope_halves, Arithmetic.rope


class _OtherAxes(Arithmetic):
    def rope_angles(self, ids, axes_dim, theta):
        return super().rope_angles(np.asarray(ids)[..., ::-1], axes_dim, theta)


class _NoHeadNorm(Arithmetic):
    def rms_norm(self, x, weight, eps=1e-6):
        return x if x.ndim == 4 else super().rms_norm(x, weight, eps)


class _OtherGelu(Arithmetic):
    def gelu(self, x, approximate="none"):
        return super().gelu(x, "none" if approximate == "tanh" else "tanh")


class _LargeEps(Arithmetic):
    def parameter(self, op, name, value):
        return 10 * value if name == "eps" else super().parameter(op, name, value)


class Mutant(NamedTuple):
    """
    name:       what an engine does that has this bug, in a few words
    arithmetic: the operations, some of them wrong
    inputs:     the inputs -> wrong ones; None: the bug makes no difference
    rename:     which weight is taken for which
    revalue:    what a weight's values are taken for
    """

    name: str
    arithmetic: type[Arithmetic] = Arithmetic
    inputs: Callable[[Inputs], Inputs | None] = lambda inputs: inputs
    rename: Renamed = lambda name: None
    revalue: Revalued = lambda name, values: None


def _change(argument: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    def changed(inputs):
        return {**inputs, argument: change(inputs[argument])} if argument in inputs else None

    return changed


def _drop(*arguments: str) -> Callable[[Inputs], Inputs | None]:
    def dropped(inputs):
        left = {name: value for name, value in inputs.items() if name not in arguments}
        return left if len(left) < len(inputs) else None

    return dropped


def _first_of_batch(inputs: Inputs) -> Inputs:
    return {name: np.broadcast_to(value[:1], value.shape) for name, value in inputs.items()}


_MODULATION = ("mod.lin", "adaLN_modulation.0", "adaLN_modulation.1", "modulation.lin")


def _swap_modulation(name: str, values: np.ndarray) -> np.ndarray | None:
    """The first chunk and the second: shift and scale, or Z-Image's scale and gate."""
    module = name.rpartition(".")[0]
    if not module.endswith(_MODULATION):
        return None
    chunk = len(values) // _chunks(name)
    return np.concatenate([values[chunk : 2 * chunk], values[:chunk], values[2 * chunk :]])


def _chunks(name: str) -> int:
    if "final_layer" in name:
        return 2
    if name.startswith(("layers.", "noise_refiner.")):
        return 4
    return 3 if "single" in name else 6


def _turn_qkv(name: str, values: np.ndarray) -> np.ndarray | None:
    """k, v, q where q, k, v stand in one weight."""
    fused = name.rpartition(".")[0].endswith(("qkv", "in_proj"))
    return np.roll(values, values.shape[0] // 3, axis=0) if fused else None


def _swap(one: str, other: str) -> Renamed:
    def renamed(name):
        if one in name:
            return name.replace(one, other)
        return name.replace(other, one) if other in name else None

    return renamed


def _flip(name: str, values: np.ndarray) -> np.ndarray | None:
    return values[:, :, ::-1, ::-1] if values.ndim == 4 and values.shape[2] > 1 else None


MUTANTS: tuple[Mutant, ...] = (
    Mutant("RoPE turns the other pairs of channels (neighbours, halves)", _OtherPairs),
    Mutant("RoPE's axes stand in the reverse order", _OtherAxes),
    Mutant("queries and keys are not normalised", _NoHeadNorm),
    Mutant("GELU is the other one (erf, tanh)", _OtherGelu),
    Mutant("eps is ten times too large", _LargeEps),
    Mutant("the time is 1000 times too small", inputs=_change("timesteps", lambda t: t / 1000)),
    Mutant("the time is rounded to a whole number", inputs=_change("timesteps", np.rint)),
    Mutant("the guidance is not embedded", inputs=_change("guidance", np.zeros_like)),
    Mutant("the pooled text is missing", inputs=_change("y", np.zeros_like)),
    Mutant("the mask is not read", inputs=_drop("context_mask", "attention_mask")),
    Mutant("the reference is not read", inputs=_drop("reference")),
    Mutant("the second item of the batch reads the first", inputs=_first_of_batch),
    Mutant("shift and scale (or scale and gate) stand in the other order", revalue=_swap_modulation),
    Mutant("q, k and v stand in another order", revalue=_turn_qkv),
    Mutant("convolutions are flipped", revalue=_flip),
    Mutant("biases are missing", revalue=lambda name, w: np.zeros_like(w) if name.endswith(".bias") else None),
    Mutant("T5's gate and value are swapped", rename=_swap("wi_0", "wi_1")),
    Mutant("the MLP's gate and value are swapped", rename=_swap("gate_proj", "up_proj")),
    Mutant("q and k are swapped", rename=_swap("q_proj", "k_proj")),
    Mutant("token ids are one too small", inputs=_change("input_ids", lambda ids: np.maximum(ids - 1, 0))),
)  # fmt: skip


class _Changed(Mapping[str, StoredTensor]):
    """A component's weights under a mutant. `met` counts those that it changed."""

    def __init__(self, weights: Mapping[str, StoredTensor], mutant: Mutant):
        self._weights, self._mutant, self.met = weights, mutant, 0

    def __getitem__(self, name: str) -> StoredTensor:
        other = self._mutant.rename(name)
        if other is not None and other in self._weights and self._weights[other].shape == self._weights[name].shape:
            self.met += 1
            return self._weights[other]
        tensor = self._weights[name]
        values = self._mutant.revalue(name, np.asarray(tensor.values()))
        if values is None or np.array_equal(values, tensor.values()):
            return tensor
        self.met += 1
        return stored(np.ascontiguousarray(values))

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights


def answer(reference: Reference, case: Case, mutant: Mutant) -> dict[str, np.ndarray] | None:
    """What the reference says when it has the bug; None where the bug makes no difference to the question."""
    numerics = reference.arithmetic.numerics
    name = case.op.removeprefix("model/")
    given = {argument: tensor.values() for argument, tensor in case.realize().items()}
    inputs = mutant.inputs(given)
    if inputs is None:
        return None
    with one_answer(numerics):
        m, params = reference._load(case, name)
        weights = _Changed(m.weights, mutant)
        y = forward(
            name, Module(weights, mutant.arithmetic(numerics)), inputs, {**params, **case.params}, case.name
        )
    revalues = mutant.revalue is not Mutant._field_defaults["revalue"]
    renames = mutant.rename is not Mutant._field_defaults["rename"]
    return None if (revalues or renames) and not weights.met else y


def causes(
    case: Case,
    inputs: Mapping[str, StoredTensor],
    found: Mapping[str, np.ndarray],
    numerics: Numerics,
    model_files: ModelFiles,
) -> list[str]:
    """The bugs under which the reference agrees with an engine's answer."""
    exact, honest = (Reference(n, model_files=model_files) for n in (FLOAT64, numerics))
    named = []
    for mutant in MUTANTS:
        truth = answer(exact, case, mutant)
        if truth is None or any(name not in found or found[name].shape != y.shape for name, y in truth.items()):
            continue
        near = answer(honest, case, mutant)
        assert near is not None
        if judge(measure_case(case, inputs, found, truth, near, numerics)).passed:
            named.append(mutant.name)
    return named
