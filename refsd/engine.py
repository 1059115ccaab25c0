"""The reference is an engine: it answers a Case as ggml, torch or a program does."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from refsd import __version__
from refsd.components import COMPONENTS, forward, load
from refsd.golden import operations
from refsd.golden.arithmetic import Arithmetic
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.deviations import Deviation
from refsd.golden.engines import ModelFiles
from refsd.golden.errors import BadInput
from refsd.golden.numerics import FLOAT64, Numerics
from refsd.golden.tensor import StoredTensor
from refsd.module import Kept, Module, Taps
from refsd.trajectory import run as trajectory
from refsd.weights.checkpoint import open_checkpoint


class Reference:
    """
    numerics:    how it computes; FLOAT64 is the truth
    deviations:  what it does differently from the original, to prove that this explains an engine
    model_files: gives the file of a model's recipe weights; without it, cases that need one are refused
    """

    name = "refsd"
    version = __version__

    def __init__(
        self,
        numerics: Numerics = FLOAT64,
        deviations: Iterable[Deviation] = (),
        model_files: ModelFiles | None = None,
    ):
        self.arithmetic = Arithmetic(numerics, deviations)
        self.model_files = model_files
        self._loaded: tuple[tuple[ModelRecipe, str], tuple[Module, dict[str, Any]]] | None = None

    def refuses(self, case: Case) -> str | None:
        if case.op in operations.OPERATIONS:
            return None
        if case.op == trajectory.OP:
            storage = self.arithmetic.numerics.storage
            return None if storage in ("float64", "float32") else f"no engine keeps its latents in {storage}"
        if case.op.removeprefix("model/") not in COMPONENTS:
            return f"no operation {case.op}"
        return "no model files" if case.model is not None and self.model_files is None else None

    def numerics(self, case: Case) -> Numerics:
        return self.arithmetic.numerics

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return self.arithmetic.deviations

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        return self.run_with_taps(case, inputs, None)

    def run_with_taps(
        self, case: Case, inputs: Mapping[str, StoredTensor], taps: Taps | None
    ) -> dict[str, np.ndarray]:
        """Compute the case; a model's blocks go to `taps`. Raises BadInput for a case that does not fit."""
        with one_answer(self.arithmetic.numerics):
            if case.op in operations.OPERATIONS:
                return operations.run(case.op, self.arithmetic, inputs, case.params)
            if case.op == trajectory.OP:
                return trajectory.answer(case, inputs, self.arithmetic.numerics.compute_dtype)
            name = case.op.removeprefix("model/")
            if name not in COMPONENTS:
                raise BadInput(f"{case.name}: no operation {case.op}")
            if COMPONENTS[name].part is None:
                # A block's case brings its weights among its inputs, under their key names.
                weights = {key: tensor for key, tensor in inputs.items() if "." in key}
                inputs = {key: tensor for key, tensor in inputs.items() if "." not in key}
                m, params = Module(weights, self.arithmetic), {}
            else:
                m, params = self._load(case, name)
            m.taps = taps
            values = {argument: tensor.values() for argument, tensor in inputs.items()}
            return forward(name, m, values, {**params, **case.params}, case.name)

    def _load(self, case: Case, name: str) -> tuple[Module, dict[str, Any]]:
        """The case's component, with as much of it kept expanded as an eighth of the memory holds."""
        if case.model is None or self.model_files is None:
            raise BadInput(
                f"{case.name}: the case needs a model: name its recipe, and give the reference model_files"
            )
        if self._loaded is None or self._loaded[0] != (case.model, name):
            self._loaded = None
            checkpoint = open_checkpoint(self.model_files(case.model, "ldm"))
            self._loaded = ((case.model, name), load(checkpoint, name, self.arithmetic, Kept(memory() // 8)))
        return self._loaded[1]


def one_answer(numerics: Numerics):
    """A context in which float64 is the same whatever the number of threads: OpenBLAS's sums move with it."""
    return threadpool_limits(1 if numerics.compute == "float64" else None, "blas")


def memory() -> int:
    """Bytes of memory that this process may hope for: the machine's, or its container's if that is less."""
    sizes = [2**33]
    if hasattr(os, "sysconf"):
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        sizes.append(int(text))
    return min(sizes)
