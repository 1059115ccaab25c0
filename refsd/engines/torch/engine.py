"""PyTorch in this process: operations by torch.nn.functional, models and stages by diffusers and other packages."""

import importlib.util
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from refsd.components import COMPONENTS
from refsd.engines.torch import trajectories as torch_trajectories
from refsd.engines.torch.devices import check_device, devices
from refsd.engines.torch.models import MODELS
from refsd.engines.torch.ops import FUNCTIONS, products
from refsd.engines.torch.stages import STAGES
from refsd.engines.torch.taps import listening
from refsd.golden import operations
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure, EngineSearch, ModelFiles, NoDeviations
from refsd.golden.recipe import realize
from refsd.golden.wording import how_to_install
from refsd.networks.component import POSITION
from refsd.networks.keymap import Source
from refsd.numerics.profiles import (
    TORCH_BF16,
    TORCH_BF16_CHANNELS_LAST,
    TORCH_F16,
    TORCH_F16_CHANNELS_LAST,
    TORCH_F32,
    TORCH_F32_CHANNELS_LAST,
    Numerics,
)
from refsd.numerics.tensor import StoredTensor
from refsd.stages import STAGES as PAGES
from refsd.weights.checkpoint import open_checkpoint

# Suffix of the engine's name -> torch's dtype, and the numerics that the engine declares.
_VARIANTS: dict[str, tuple[str, Numerics]] = {
    "": ("float32", TORCH_F32),
    "-f16": ("float16", TORCH_F16),
    "-bf16": ("bfloat16", TORCH_BF16),
}
_CHANNELS_LAST: dict[str, tuple[str, Numerics]] = {
    "": ("float32", TORCH_F32_CHANNELS_LAST),
    "-f16": ("float16", TORCH_F16_CHANNELS_LAST),
    "-bf16": ("bfloat16", TORCH_BF16_CHANNELS_LAST),
}
_LAID_OUT = "channels_last"
HOW_TO_GET = how_to_install("torch")


def times_of(case: Case) -> list[str]:
    """Name a model's inputs that are times or positions: pipelines keep these in float32 for any dtype."""
    component = COMPONENTS.get(case.op.removeprefix("model/"))
    arguments = component.arguments if component else {}
    return [name for name in case.inputs if name in arguments and arguments[name].kind == POSITION]


class TorchEngine(NoDeviations):
    """PyTorch as an engine, in one dtype on one device.

    name:          "torch", "torch-f16", "torch-bf16"; on other devices than the CPU "torch@cuda", ...
    dtype:         torch's name of the dtype of all parameters and activations
    device:        name of a Device
    channels_last: True to store pictures and filters with channels last in memory
    model_files:   model recipe, layout -> its files; None: the engine refuses cases of models

    any_layout: tensors of operations may have any memory layout, and reach torch with it
    """

    any_layout = True

    def __init__(
        self,
        name: str,
        dtype: str,
        device: str,
        channels_last: bool,
        numerics: Numerics,
        model_files: ModelFiles | None,
    ):
        import torch

        self._channels_last = channels_last
        self.name = name if device == "cpu" else f"{name}@{device}"
        self.device = next(one.title for one in devices() if one.name == device)
        self.version = torch.__version__
        self._dtype, self._device, self._numerics = getattr(torch, dtype), device, numerics
        # Without AVX-512, oneDNN's float32 convolution sums term by term. No profile declares that: on data with a
        # large mean its error is 7 times that of sums in blocks. So torch's own convolution is used instead.
        self._onednn = dtype != "float32" or torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        self.version += "" if self._onednn or device != "cpu" else " without oneDNN"
        self._model_files = model_files
        self._loaded: tuple[tuple[ModelRecipe, str], Any] | None = None

    def refuses(self, case: Case) -> str | None:
        if case.op in FUNCTIONS:
            unfused = case.op == "attention" and "sinks" in case.inputs and self._numerics.storage != "float32"
            if unfused:
                return "torch has no attention with sinks: composed, it rounds the scores"
            return products.refuses(case, self._numerics.storage, self._device)
        if case.op == "trajectory":
            wide = self._numerics.storage == "float32"
            return torch_trajectories.refuses(case.params) if wide else "latents are kept in float32"
        if case.op in STAGES:
            return self._refuses_stage(case)
        if case.op not in MODELS:
            return f"torch has no {case.op}"
        package = MODELS[case.op].package
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
        if case.model is None or self._model_files is None:
            return "no model files"
        if case.op == "model/unet" and "hint" in case.inputs:
            return "the UNet and its ControlNet are two modules of diffusers; this engine runs one"
        if case.op == "model/unet" and "ip_tokens" in case.inputs:
            return "diffusers loads an IP-Adapter into its UNet; this engine runs the UNet alone"
        if case.params.get("cached_references"):
            return "diffusers has cached references before the picture: its taps are in another order"
        if MODELS[case.op].rounds_time and self._numerics.storage != "float32":
            moved = [name for name in times_of(case) if not self._keeps(case, name)]
            if moved:
                return f"{package} rounds {' and '.join(moved)} to {self._numerics.storage} before embedding"
        return (
            None if case.model.type in ("f32", "f16", "bf16") else f"diffusers keeps no {case.model.type} weights"
        )

    def _refuses_stage(self, case: Case) -> str | None:
        stage = STAGES[case.op]
        if self._numerics.storage != "float32" or self._device != "cpu":
            return "pipelines compute their stages on the CPU, in float32"
        if importlib.util.find_spec(stage.package) is None:
            return f"{stage.package} is not installed"
        return stage.refuses(PAGES[case.op].complete(case.inputs, case.params), case.inputs.keys())

    def numerics(self, case: Case) -> Numerics:
        return self._numerics

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        return self._run(case, inputs, tapped=False)[0]

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return self._run(case, inputs, tapped=True)

    def _run(self, case: Case, inputs: Mapping[str, StoredTensor], tapped: bool):
        import torch

        with quietly(), torch.backends.mkldnn.flags(enabled=self._onednn), torch.inference_mode():
            times = times_of(case)
            tensors = {name: self._tensor(tensor.values(), name in times) for name, tensor in inputs.items()}
            try:
                if case.op in FUNCTIONS:
                    params = operations.complete(case.op, inputs, case.params)
                    return {"y": self._answer(FUNCTIONS[case.op](torch, tensors, params))}, {}
                if case.op == "trajectory":
                    outputs = torch_trajectories.run(torch, tensors["noise"], case.params)
                    return {name: arrays(y) for name, y in outputs.items()}, {}
                if case.op in STAGES:
                    params = PAGES[case.op].complete(inputs, case.params)
                    outputs = STAGES[case.op].run(torch, tensors, params)
                    return {name: np.asarray(y) for name, y in outputs.items()}, {}
                model = self._model(case)
                with listening(model, self._sources(case) if tapped else {}) as taps:
                    outputs = MODELS[case.op].run(model, tensors, case.params)
                taps = MODELS[case.op].laid_out(taps, tensors) if tapped else {}
            except (RuntimeError, NotImplementedError) as error:
                raise EngineFailure(f"torch: {str(error).splitlines()[0]}") from error
            taken = {name: arrays(y) for name, y in taps.items()}
            return {name: self._answer(y) for name, y in outputs.items()}, taken

    def _answer(self, y) -> np.ndarray:
        check_device(y, self._device)
        return arrays(y)

    def _sources(self, case: Case) -> Mapping[str, Source]:
        """Return refsd's name of each weight -> its sources in the folder from which the model was loaded."""
        assert case.model is not None and self._model_files is not None
        kind = MODELS[case.op]
        part = COMPONENTS[case.op.removeprefix("model/")].part or ""
        return open_checkpoint(self._model_files(case.model, kind.layout)).components[part].weights.sources

    def _keeps(self, case: Case, name: str) -> bool:
        """Return True if an input, and 1000 times it, are exact in the engine's dtype."""
        x = np.float64(1) * realize(case.inputs[name], f"{case.name}/{name}").values()
        dtype = self._numerics.storage_dtype
        return all(np.array_equal(y.astype(dtype).astype(np.float64), y) for y in (x, 1000 * x))

    def _tensor(self, x: np.ndarray, is_time: bool):
        """Convert an input to torch: ids to int64, a time to float32, others to the dtype."""
        import torch

        if is_time:
            return torch.from_numpy(np.array(x, np.float32)).to(self._device)
        if x.dtype.kind in "iu":
            return torch.from_numpy(x.astype(np.int64)).to(self._device)
        x = np.array(x, np.float32) if x.flags.c_contiguous else np.asarray(x, np.float32)
        y = torch.from_numpy(x).to(self._device, self._dtype)
        return channels_last(y) if self._channels_last else y

    def _model(self, case: Case):
        """Load the case's component; the last one stays loaded."""
        assert case.model is not None and self._model_files is not None
        kind = MODELS[case.op]
        key = (case.model, kind.package + kind.folder)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None
            folder = self._model_files(case.model, kind.layout)
            with quietly():
                model = kind.load(folder, self._dtype).to(self._device).eval()
                if self._channels_last:
                    for parameter in model.parameters():
                        parameter.data = channels_last(parameter.data)
                self._loaded = (key, model)
        return self._loaded[1]


def channels_last(y):
    """Store a picture [N, C, H, W] or video [N, C, D, H, W], or filters for them, with channels last in memory."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return y.to(memory_format=formats[y.ndim]) if y.ndim in formats else y


@contextmanager
def quietly():
    """Suppress warnings, log messages up to WARNING, and progress bars."""
    logged = logging.root.manager.disable
    logging.disable(logging.WARNING)
    before = {name: os.environ.get(name) for name in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logged)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def arrays(y) -> np.ndarray:
    y = y.detach().cpu()
    if str(y.dtype) == "torch.bfloat16":
        return y.float().numpy().astype(ml_dtypes.bfloat16)
    return y.numpy()


def find(
    path: str | None = None, device: str = "cpu", model_files: ModelFiles | None = None, **_
) -> list[EngineSearch]:
    """Find the installed torch, in each dtype; on CUDA, switch TF32 off.

    path:   "channels_last", on the CPU only; None: the usual layout
    device: name of one of `devices`
    """
    if importlib.util.find_spec("torch") is None:
        return [EngineSearch("torch", None, HOW_TO_GET)]
    if path not in (None, _LAID_OUT) or (path and device != "cpu"):
        expected = f"torch, torch@DEVICE or torch:{_LAID_OUT}"
        return [EngineSearch("torch", None, f"no {path!r} on {device}: expected {expected}")]
    there = devices()
    if device == "mps" and os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        return [EngineSearch("torch", None, "PYTORCH_ENABLE_MPS_FALLBACK=1 lets the CPU compute: unset it")]
    if device not in [one.name for one in there]:
        listed = ", ".join(one.title for one in there)
        return [EngineSearch("torch", None, f"this torch sees no device {device}, only {listed}")]
    import torch

    if device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    name = "torch-channels-last" if path else "torch"
    variants = _CHANNELS_LAST if path else _VARIANTS
    engines = [
        TorchEngine(name + end, dtype, device, bool(path), numerics, model_files)
        for end, (dtype, numerics) in variants.items()
    ]
    return [EngineSearch(engine.name, engine) for engine in engines]
