"""Peers in float64 that stay there.

diffusers and transformers cast to float32 inside (timestep embeddings, RMSNorm, RoPE, softmax),
whatever the dtype of their parameters. `float64_throughout` turns each such cast into one to float64.
"""

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class _Lift(TorchFunctionMode):
    """Whatever torch is asked for in float32, it gives in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(_wider(a) for a in args)
        return func(*args, **{name: _wider(value) for name, value in (kwargs or {}).items()})


def _wider(value):
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


@contextlib.contextmanager
def float64_throughout() -> Iterator[None]:
    """Inside, the default dtype is float64 and no torch function narrows to float32 or complex64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), _Lift():
            yield
    finally:
        torch.set_default_dtype(before)


def redraw(module: torch.nn.Module, seed: int) -> None:
    """Give every parameter its own draw, so that no tensor passes for another: no weight is 1, no bias 0."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        fan_in = max(parameter[0].numel(), 1) if parameter.ndim > 1 else 1
        if parameter.ndim > 1:
            parameter.data = draw / fan_in**0.5
        else:
            parameter.data = 0.3 * draw + 0.7


@contextlib.contextmanager
def outputs_of(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Inside, each submodule's last output is collected under its name; of a tuple, the first part."""
    outputs: dict[str, torch.Tensor] = {}

    def listen(name):
        def hook(_module, _args, output):
            outputs[name] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [child.register_forward_hook(listen(name)) for name, child in module.named_modules() if name]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A float64 input."""
    return np.random.default_rng(seed).standard_normal(shape)


def distance(got: np.ndarray, want: torch.Tensor) -> float:
    """||got - want|| / ||want||; infinite where shapes or dtypes differ."""
    reference = want.detach().numpy()
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return np.inf
    return float(np.linalg.norm(got - reference) / np.linalg.norm(reference))


def draw_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """A float64 weight for each name, every one its own draw: no norm's weight is 1, no bias 0."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        if len(shape) > 1
        else 0.3 * rng.standard_normal(shape) + name.endswith("weight")
        for name, shape in shapes.items()
    }
