"""The engine ggml: a device of any shared libggml, called through ctypes in a separate process."""

import functools
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from refsd.engines.ggml.declared import DECLARED, groups, undeclared
from refsd.engines.ggml.devices import CPU, Device, Ran
from refsd.engines.ggml.graph import SCALAR_IDS
from refsd.engines.ggml.library import library_files
from refsd.engines.ggml.ops import REFUSALS
from refsd.engines.ggml.requests import PREFIX, declared, request_of, takes_factors
from refsd.engines.hidden_rows import hides_rows
from refsd.engines.worker import Worker
from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch, NoDeviations
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import GGML_CPU, Numerics
from refsd.numerics.tensor import StoredTensor, stored

# Python package that contains a shared libggml -> the library's folder inside it
_PACKAGES = {"ggml": "lib", "llama_cpp": "lib"}

HOW_TO_GET = "give ggml:PATH, set REFSD_GGML, or install ggml-python"

# Between 1 and the next float16, 1 + 2^-10, and nearer to 1: exact in float32, rounded to 1 in float16.
_UNSEEN_BY_F16 = np.float32(1 + 2**-12)

# simd-mappings.h, GGML_F16_STEP: 32 on ARM, 128 on AVX512-FP16
_LANES = (8, 16, 32, 64, 128, 256)


class GgmlLibrary:
    """One libggml in its worker process: its operations on one device, and the roundings measured there.

    device: the device's name; without one, the CPU

    Raises BadInput if the library has no such device.
    """

    def __init__(self, place: Path, n_threads: int, timeout: float, device: str = ""):
        self.place = place
        self._worker = Worker(["-m", "refsd.engines.ggml.worker", str(place), str(n_threads), device], timeout)
        described, _ = self._worker.ask({"describe": True}, {})
        if "unfit" in described:
            raise BadInput(described["unfit"])
        self.version: str = described["version"]
        self.ops: dict[str, list[str]] = described["ops"]
        self.lacks: list[str] = described["lacks"]
        self.requests: list[str] = described["requests"]
        self.device = Device(*described["device"])
        self._buffer: str = described["buffer"]
        self._flash_sums: dict[tuple[int, int, int, int], bool] = {}
        self._unsupported: dict[bytes, str] = {}

    def compute(
        self, op: str, params: Mapping, inputs: Mapping[str, StoredTensor], engine: str = "ggml"
    ) -> np.ndarray:
        """Compute an operation with the graph of an engine. engine: its name without the device

        Raises EngineFailure if anything but the device computed it, or if its tensors were in other memory.
        """
        answer, results = self._worker.ask({"op": op, "params": dict(params), "engine": engine}, inputs)
        ran = Ran(**answer["ran"])
        if (ran.device, ran.buffer) != (self.device.name, self._buffer) or not ran.nodes:
            raise EngineFailure(
                f"{self.device.name} was asked and {ran.device} computed {ran.nodes} nodes, in memory of "
                f"{ran.buffer}: expected {self.device.name} with memory of {self._buffer}"
            )
        return results["y"].data

    def unsupported(self, engine: str, case: Case) -> str:
        """Say which node of a case the device does not support; "" if it supports all, or dies when it is asked."""
        inputs = {name: [recipe.type, recipe.shape] for name, recipe in case.inputs.items()}
        params = operations.complete(case.op, cast(Any, case.inputs), case.params)
        asked = {"supports": case.op, "inputs": inputs, "params": params, "engine": engine}
        key = msgspec.json.encode(asked)
        if key not in self._unsupported:
            try:
                self._unsupported[key] = self._worker.ask(asked, {})[0]["lacks"]
            except EngineFailure:
                self._unsupported[key] = ""
        return self._unsupported[key]

    @functools.cached_property
    def gelu_tables(self) -> dict[str, bool]:
        """op -> True if it reads a float16 table. That is a build option of ggml, so it is measured."""
        x = stored(np.array([1, _UNSEEN_BY_F16], np.float32))
        return {op: len(set(self.compute(op, {}, {"x": x}))) == 1 for op in ("gelu", "gelu_tanh", "quick_gelu")}

    def sums_flash_in_f16(self, L: int, J: int, D: int, E: int) -> bool:
        """Measure whether ggml_flash_attn_ext accumulates in float16 for L queries and J keys.

        The answer depends on the version, the CPU's vector width, L, and the widths D of keys and E of values.
        The test gives all keys equal scores and the values 1, 2^-12, 2^-12, ...: a float16 sum stays at 1.
        """
        if (L, J, D, E) not in self._flash_sums:
            q, k = np.zeros((1, L, 1, D), np.float32), np.zeros((1, J, 1, D), np.float32)
            v = np.full((1, J, 1, E), 2**-12, np.float32)
            v[:, 0] = 1
            inputs = {"q": stored(q), "k": stored(k), "v": stored(v)}
            y = self.compute("attention", {"scale": 1.0, "causal": False}, inputs, "ggml-flash")
            exact = (1 + (J - 1) * 2**-12) / J
            self._flash_sums[L, J, D, E] = bool(np.abs(y - exact).max() > 2**-14 / J)
        return self._flash_sums[L, J, D, E]

    @functools.cached_property
    def multiplies_in_f16(self) -> bool:
        """True if a product of float32 matrices, of more rows than a vector's kernel takes, rounds to float16."""
        x, weight = np.full((64, 32), _UNSEEN_BY_F16), np.eye(32, dtype=np.float32)
        y = self.compute("linear", {}, {"x": stored(x), "weight": stored(weight)})
        return bool((y == 1).all())

    @functools.cached_property
    def f16_lanes(self) -> int:
        """Measure how many float16 sums a product with float16 weights is kept in; 0 if its sums are float32.

        Of 1 and 2^-12 at every Lth place after it, added up in float16 in L lanes, the 1 remains.
        """
        for lanes in _LANES:
            x = np.zeros((1, 16 * lanes), np.float32)
            x[:, ::lanes], x[:, 0] = 2**-12, 1
            weight = stored(np.ones((1, x.size), np.float16))
            if self.compute("linear", {}, {"x": stored(x), "weight": weight}).item() == 1:
                return lanes
        return 0

    @functools.cached_property
    def rounds_f32_patches(self) -> dict[str, bool]:
        """op -> True if ggml_conv_2d or ggml_conv_3d rounds float32 patches to float16. Versions differ."""
        rounds = {}
        for op, axes in (("conv2d", 4), ("conv3d", 5)):
            if op in self.ops["ggml"]:
                one = np.ones((1,) * axes, np.float32)
                inputs = {"x": stored(one * _UNSEEN_BY_F16), "weight": stored(one)}
                params = operations.complete(op, inputs, {})
                rounds[op] = self.compute(op, params, inputs).item() == 1.0
        return rounds


class GgmlEngine(NoDeviations):
    """Compute operations with one of ggml's sets of graphs.

    name: "ggml" (attention as mul_mat, soft_max, mul_mat; convolution as im2col, mul_mat), "ggml-flash"
          (ggml_flash_attn_ext), "ggml-direct" (ggml_conv_2d_direct, ggml_conv_3d_direct) or "ggml-prec-" and a key
          of REQUESTS (mul_mat and ggml_flash_attn_ext, whose precision it requests)
    """

    def __init__(self, name: str, library: GgmlLibrary):
        self._set = name
        self.name = name if library.device.name == CPU else f"{name}@{library.device.name}"
        self.version = library.version
        self.device = library.device.title
        self._library = library
        self._wish = request_of(name)
        self._flash = name == "ggml-flash" or self._wish is not None
        self._direct = name == "ggml-direct"

    def refuses(self, case: Case) -> str | None:
        if case.model is not None:
            return "ggml holds no models"
        if (reason := undeclared(self._library.device.backend, case)) is not None:
            return reason
        if case.op not in self._library.ops[self._set]:
            return f"no {case.op} in this {self._set}"
        if case.op == "attention" and not self._flash and hides_rows(case):
            return "ggml_soft_max makes NaN of a query that sees no key"
        if self._direct and groups(case) > 1:
            return "a direct convolution of ggml knows no groups"
        unknown = [recipe.type for recipe in case.inputs.values() if recipe.type in self._library.lacks]
        if unknown:
            return f"this libggml has no {unknown[0]}"
        refusal = (_REFUSALS.get(case.op) or REFUSALS.get(case.op, _never))(case)
        return refusal or self._library.unsupported(self._set, case) or None

    def numerics(self, case: Case) -> Numerics:
        """Return what the device's backend declares for this case, without roundings that this build omits."""
        graphs = self._set if self._wish is None else "ggml" if case.op == "linear" else "ggml-flash"
        own = DECLARED[self._library.device.backend](self._library, graphs, case)
        if self._wish is None:
            return own
        return declared(own, self._wish, case, takes_factors(self._library.requests))

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        params = operations.complete(case.op, inputs, case.params)
        return {"y": self._library.compute(case.op, params, inputs, self._set)}


def _never(case: Case) -> str | None:
    return None


def _no_matrix(case: Case) -> str | None:
    kind = case.inputs["weight"].type
    known = kind in ("f32", "f64") or kind in GGML_CPU.activations
    return None if known else f"what ggml rounds activations to for {kind} weights is not declared"


def _no_filter(case: Case) -> str | None:
    weight = case.inputs["weight"]
    if weight.type not in ("f32", "f16"):
        return f"ggml_conv_2d takes no {weight.type} filter"
    if groups(case) > 1 and (
        case.op == "conv3d" or not weight.shape[0] == groups(case) == case.inputs["x"].shape[1]
    ):
        return "ggml's convolutions know no groups but a channel each"
    return None


def _no_table(case: Case) -> str | None:
    name = "weight" if case.op == "embedding" else "x"
    kind = case.inputs[name].type
    return None if kind in SCALAR_IDS or kind in BLOCK_TYPES else f"ggml has no type {kind}"


_REFUSALS = {
    "linear": _no_matrix,
    "conv2d": _no_filter,
    "conv3d": _no_filter,
    "embedding": _no_table,
    "dequantize": _no_table,
}


def find(
    path: str | None = None, device: str = "", threads: int = 2, timeout: float = 300.0, **_
) -> list[EngineSearch]:
    """Look for libggml at `path` (a file or a folder), in $REFSD_GGML, then in installed Python packages.

    device: as ggml calls it: "Vulkan0", "CUDA0", "BLAS"; without one, the CPU
    """
    try:
        place = _place(path)
        if place is None:
            return [EngineSearch("ggml", None, HOW_TO_GET)]
        library_files(place)
        library = GgmlLibrary(place, threads, timeout, device)
    except (BadInput, EngineFailure) as error:
        return [EngineSearch("ggml", None, str(error))]
    engines = [GgmlEngine(name, library) for name in ("ggml", "ggml-flash", "ggml-direct")]
    requesting = [GgmlEngine(PREFIX + name, library) for name in library.requests]
    found = [EngineSearch(engine.name, engine) for engine in engines]
    return [*found, *(EngineSearch(engine.name, engine, only_by_name=True) for engine in requesting)]


def devices(path: str | None = None, timeout: float = 60.0) -> list[Device]:
    """List the devices that the libggml has, with those of its plug-ins. Raises EngineFailure or BadInput."""
    place = _place(path)
    if place is None:
        return []
    library_files(place)
    worker = Worker(["-m", "refsd.engines.ggml.worker", str(place), "1"], timeout)
    return [Device(*one) for one in worker.ask({"devices": True}, {})[0]["devices"]]


def _place(path: str | None) -> Path | None:
    given = path or os.environ.get("REFSD_GGML")
    if given:
        return Path(given)
    for package, folder in _PACKAGES.items():
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(location) / folder).is_dir():
                return Path(location) / folder
    return None
