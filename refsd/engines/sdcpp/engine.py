"""The engine stable-diffusion.cpp, judged through an unmodified sd-cli.

sd-cli draws pictures and cannot run a single component. If it links ggml as a shared library, refsd preloads a tap
(tap.c) that replaces the inputs of a ggml graph by the case's inputs and records the graph's output. So each
component runs as the program builds it. The tap ends the program after the wanted graph. It also tells on which
device each graph was computed: another than the wanted one fails the case (device.py). How to run each component:
sd1.py, unets.py, families.py, chroma.py, flux2.py, text.py.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refsd.components import COMPONENTS
from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.declared import MODELS
from refsd.engines.ggml.devices import CPU, Device
from refsd.engines.sdcpp import chroma as sdcpp_chroma
from refsd.engines.sdcpp import families as sdcpp_families
from refsd.engines.sdcpp import flux2 as sdcpp_flux2
from refsd.engines.sdcpp import qwen_image as sdcpp_qwen_image
from refsd.engines.sdcpp import sd1 as sdcpp_sd1
from refsd.engines.sdcpp import stages as sdcpp_stages
from refsd.engines.sdcpp import text as sdcpp_text
from refsd.engines.sdcpp import unets as sdcpp_unets
from refsd.engines.sdcpp.layers import layer_taps
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.reach import Call, Reach, scratch
from refsd.engines.sdcpp.tap import Graph
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch, ModelFiles
from refsd.numerics.deviations import DEVIATIONS, Deviation
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, GGML_CPU, GGML_CPU_FLASH, Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.stages import STAGES as PAGES
from refsd.weights.checkpoint import open_checkpoint

# (family, operation) -> how to run it inside sd-cli
REACHES: dict[tuple[str, str], Reach] = {
    **sdcpp_sd1.REACHES,
    **sdcpp_unets.REACHES,
    **sdcpp_families.REACHES,
    **sdcpp_chroma.REACHES,
    **sdcpp_flux2.REACHES,
    **sdcpp_qwen_image.REACHES,
    **sdcpp_text.REACHES,
}


class SdcppEngine:
    """Answer cases of models with sd-cli.

    name:        "sdcpp", or "sdcpp-flash" for sd-cli --fa
    model_files: returns the checkpoint of a case
    """

    def __init__(self, name: str, program: Program, model_files: ModelFiles | None):
        on_cpu = program.device in ("", CPU)
        self.name = name if on_cpu else f"{name}@{program.device}"
        self.device = "" if on_cpu else program.ggml.device.title
        self.version = program.version
        self._program = program
        self._model_files = model_files
        self._flash = name == "sdcpp-flash"

    def refuses(self, case: Case) -> str | None:
        if case.op in PAGES:
            return self._refuses_stage(case)
        ops = dict.fromkeys(op for _, op in REACHES)
        if case.op not in ops:
            return f"sd-cli reaches {', '.join(ops)}, not {case.op}"
        if not self._program.shares_ggml:
            return (
                "this sd-cli holds ggml inside: only one built with SD_BUILD_SHARED_GGML_LIB=ON can be looked into"
            )
        if case.model is None or self._model_files is None:
            return "no model files"
        reach = REACHES.get((case.model.family, case.op))
        if reach is None:
            return f"how to reach {case.op} of {case.model.family} in sd-cli is not known here"
        if case.model.sizes:
            return f"which other sizes of {case.model.family} sd-cli loads is not known here"
        if case.model.tiny and not reach.tiny:
            return f"sd-cli loads {case.op} of {case.model.family} in its full size only"
        return reach.refuses(case)

    def _refuses_stage(self, case: Case) -> str | None:
        if not self._program.shares_ggml or self._model_files is None:
            return "stages are read from an sd-cli built with SD_BUILD_SHARED_GGML_LIB=ON, on a model's file"
        if self._flash:
            return "--fa changes no stage: sdcpp answers it"
        return sdcpp_stages.refuses(case.op, PAGES[case.op].complete(case.inputs, case.params))

    def numerics(self, case: Case) -> Numerics:
        if case.op in PAGES:
            return FLOAT32
        assert case.model is not None
        try:
            library = self._program.ggml
            return MODELS[library.device.backend](library, self._flash, case.model.type)
        except (BadInput, EngineFailure):  # what lies beside the program cannot be asked
            if self._program.device not in ("", CPU):
                raise
            return GGML_CPU_FLASH if self._flash else GGML_CPU

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        if case.model is None:
            return ()
        return tuple(DEVIATIONS[name] for name in REACHES[case.model.family, case.op].deviations)

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        if case.op in PAGES:
            assert self._model_files is not None
            params = PAGES[case.op].complete(case.inputs, case.params)
            return sdcpp_stages.run(self._program, self._model_files, case.op, params)
        return self._run(case, inputs, None)

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The taps are layers with weights; what stands between two of them is judged with the layer after it."""
        if case.op in PAGES:
            return self.run(case, inputs), {}
        assert case.model is not None and self._model_files is not None
        graphs: list[Graph] = []
        outputs = self._run(case, inputs, graphs)
        part = COMPONENTS[case.op.removeprefix("model/")].part or ""
        weights = open_checkpoint(self._model_files(case.model, "ldm")).components[part].weights
        taps = layer_taps(graphs, weights)
        return outputs, {name: y for name, y in taps.items() if not _otherwise(case, name)}

    def _run(self, case: Case, inputs: Mapping[str, StoredTensor], graphs: list[Graph] | None):
        assert case.model is not None and self._model_files is not None
        arrays = {name: tensor.values() for name, tensor in inputs.items()}
        reach = REACHES[case.model.family, case.op]
        with scratch() as folder:
            args = reach.flags(self._model_files, case.model, folder) + (["--fa"] if self._flash else [])
            return reach.answer(Call(self._program, args, case, arrays, self._model_files, folder, graphs))


def _otherwise(case: Case, tap: str) -> bool:
    """Whether sd-cli computes a layer on other tokens, or gives its channels in another order, as it may."""
    if case.op == "model/mistral":
        # Pairs of channels that turn together stand side by side in its queries and keys.
        return tap.endswith((".q_proj", ".k_proj"))
    # It computes the last layer for a reference's tokens as well, and drops them after it.
    return "reference" in case.inputs and tap == "final_layer.linear"


def find(
    path: str | None = None, device: str = "", model_files: ModelFiles | None = None, timeout=1800.0, **_
) -> list[EngineSearch]:
    """Look for sd-cli at `path`, in $REFSD_SD_CLI, then on the PATH.

    device: as ggml calls it: "Vulkan0", "CUDA0"; without one, the CPU
    """
    place = _place(path)
    if place is None:
        return [
            EngineSearch("sdcpp", None, "give sdcpp:/path/to/sd-cli, set REFSD_SD_CLI or put sd-cli on the PATH")
        ]
    try:
        program = Program(Path(place), timeout, device or CPU)
        if program.device != CPU and program.ggml.device.backend not in MODELS:
            backend = program.ggml.device.backend
            raise BadInput(f"how ggml's {backend} rounds in a model is not declared: {', '.join(MODELS)} are")
        engines = [SdcppEngine(name, program, model_files) for name in ("sdcpp", "sdcpp-flash")]
    except (BadInput, EngineFailure, OSError) as error:
        return [EngineSearch("sdcpp", None, str(error))]
    return [EngineSearch(engine.name, engine) for engine in engines]


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the ggml that sd-cli loads. Raises EngineFailure or BadInput."""
    place = _place(path)
    if place is None:
        return []
    program = Program(Path(place))
    return ggml.devices(str(program.ggml_folder)) if program.shares_ggml else []


def _place(path: str | None) -> str | None:
    return path or os.environ.get("REFSD_SD_CLI") or shutil.which("sd-cli")
