"""Why a model does not conform: what one must do to the reference for it to say what the engine says."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from refsd.engine import Reference
from refsd.golden.case import Case
from refsd.golden.conform import measure_case
from refsd.golden.engines import ModelFiles
from refsd.golden.numerics import FLOAT64, GGML_CPU, TORCH_BF16, TORCH_F16, Numerics
from refsd.golden.tensor import StoredTensor
from refsd.golden.verdict import judge
from refsd.model_mutants import MUTANTS, Mutant, answer

Answer = Mapping[str, np.ndarray]

# What an engine may compute as without knowing.
_PRECISIONS = (TORCH_F16, TORCH_BF16, GGML_CPU)
_NUMBERED = re.compile(r"(.*?\.\d+)\.")


def causes(
    case: Case, inputs: Mapping[str, StoredTensor], found: Answer, numerics: Numerics, model_files: ModelFiles
) -> list[str]:
    """The bugs under which the reference agrees with an engine's answer.

    Tried in turn, until something agrees: another size of the whole answer, numerics that the engine does not
    declare, each known bug everywhere, and those that are of weights in one block alone.
    """
    exact, honest = (Reference(n, model_files=model_files) for n in (FLOAT64, numerics))
    truth, near = exact.run(case, inputs), honest.run(case, inputs)
    if any(name not in found or found[name].shape != y.shape for name, y in truth.items()):
        return []
    if any(not np.isfinite(found[name]).all() for name in truth):
        return []

    def agrees(y: Answer, right: Answer, like: Answer) -> bool:
        return judge(measure_case(case, inputs, y, right, like, numerics)).passed

    def explains(mutant: Mutant) -> bool:
        like = answer(honest, case, mutant)
        if like is None or not _nearer(found, like, near, 0.5):
            return False
        right = answer(exact, case, mutant)
        return right is not None and agrees(found, right, like)

    size = _size(found, truth)
    if agrees({name: found[name] / size for name in truth}, truth, near):
        return [f"all that it gives is {size:.6g} times as large"]
    for other in (profile for profile in _PRECISIONS if profile != numerics):
        rough = Reference(other, model_files=model_files).run(case, inputs)
        if _nearer(found, rough, truth, 0.8) and agrees(found, truth, rough):
            return [f"it computes as {other.name}, and not as {numerics.name}"]
    named = [mutant.name for mutant in MUTANTS if explains(mutant)]
    return named or [mutant.name for mutant in _in_one_block(honest, case) if explains(mutant)]


def _size(found: Answer, truth: Answer) -> float:
    """The factor that brings the truth nearest to what was found; 1 where there is none."""
    y, t = (np.concatenate([np.ravel(of[name]).astype(np.float64) for name in truth]) for of in (found, truth))
    return float(y @ t / (t @ t)) if t.any() and y @ t else 1.0


def _nearer(found: Answer, one: Answer, other: Answer, share: float) -> bool:
    """Whether it is at most `share` as far from the one as from the other, each output in units of its size."""
    if any(y.shape != found[name].shape for name, y in one.items()):
        return False

    def apart(y: Answer) -> float:
        return sum(
            float(np.linalg.norm(found[name].astype(np.float64) - y[name]) / (np.linalg.norm(other[name]) or 1.0))
            for name in other
        )

    return apart(one) <= share * apart(other)


def _in_one_block(reference: Reference, case: Case) -> Iterator[Mutant]:
    """Each bug of weights, in each numbered block alone."""
    m, _ = reference._load(case, case.op.removeprefix("model/"))
    blocks = dict.fromkeys(match[1] for match in map(_NUMBERED.match, m.weights) if match)
    for mutant in MUTANTS:
        if (
            mutant.rename is Mutant._field_defaults["rename"]
            and mutant.revalue is Mutant._field_defaults["revalue"]
        ):
            continue
        for block in blocks:
            yield _within(mutant, f"{block}.")


def _within(mutant: Mutant, prefix: str) -> Mutant:
    def rename(name):
        return mutant.rename(name) if name.startswith(prefix) else None

    def revalue(name, values):
        return mutant.revalue(name, values) if name.startswith(prefix) else None

    return mutant._replace(name=f"{mutant.name} in {prefix[:-1]}", rename=rename, revalue=revalue)
