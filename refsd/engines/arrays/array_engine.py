"""An array library in a worker process: its operations by name, in one dtype, on one device."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.engines.arrays.devices import starts
from refsd.engines.arrays.function import Function, Refusal
from refsd.engines.worker import Worker
from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch, NoDeviations
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor

# Element types that every array library reads; blocks and float8 are formats of others.
_TYPES = ("f32", "f16", "bf16", "f64", "i32", "i64")


class Library(NamedTuple):
    """What a library can compute.

    name:      as refusals call it
    functions: operation -> how it is computed
    refusals:  operation -> why the library's function cannot compute a case
    rounding:  operation -> fields of Numerics that differ from the engine's there
    rounded:   operation -> why it is not judged where storage is narrower than float32
    types:     element types that the library reads
    """

    name: str
    functions: Mapping[str, Function]
    refusals: Mapping[str, Refusal] = {}
    rounding: Mapping[str, Mapping] = {}
    rounded: Mapping[str, str] = {}
    types: tuple[str, ...] = _TYPES


class ArrayEngine(NoDeviations):
    """Compute operations with a library's own functions.

    name:     as reports call it: "jax", "jax-bf16", "jax@cuda"
    version:  of the library
    dtype:    of every tensor that is not an id: "float32", "float16", "bfloat16"
    numerics: how the library rounds where `rounding` does not say otherwise
    worker:   the process that has imported the library; variants of one device share it
    """

    def __init__(self, library: Library, name: str, version: str, dtype: str, numerics: Numerics, worker: Worker):
        self.name, self.version = name, version
        self._library, self._dtype, self._numerics, self._worker = library, dtype, numerics, worker

    def refuses(self, case: Case) -> str | None:
        library = self._library
        if case.op not in library.functions:
            return f"{library.name} has no {case.op}"
        foreign = [recipe.type for recipe in case.inputs.values() if recipe.type not in library.types]
        if foreign:
            return f"{library.name} reads no {foreign[0]} weights"
        if self._numerics.storage != "float32" and case.op in library.rounded:
            return library.rounded[case.op]
        refusal = library.refusals.get(case.op)
        return refusal(case) if refusal else None

    def numerics(self, case: Case) -> Numerics:
        return dataclasses.replace(self._numerics, **self._library.rounding.get(case.op, {}))

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        params = operations.complete(case.op, inputs, case.params)
        _, results = self._worker.ask({"op": case.op, "params": dict(params), "dtype": self._dtype}, inputs)
        return {"y": results["y"].data}


def array_engines(
    library: Library,
    name: str,
    version: str,
    variants: Mapping[str, tuple[str, Numerics]],
    worker: Worker,
    on_cpu: bool,
) -> list[EngineSearch]:
    """Make an engine of each variant; where a device other than the CPU does not start, say why.

    name:     of the variant "": "jax", "jax@cuda"
    variants: what follows the library's name -> dtype, and how the library rounds
    """
    if not on_cpu and (why := starts(worker)):
        return [EngineSearch(name, None, why)]
    found = []
    for end, (dtype, numerics) in variants.items():
        variant = name.replace(library.name, f"{library.name}{end}", 1)
        found.append(EngineSearch(variant, ArrayEngine(library, variant, version, dtype, numerics, worker)))
    return found
