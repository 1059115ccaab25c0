"""Declare a stage for the torch engine."""

from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

Params = Mapping[str, Any]
# torch, the inputs as tensors, parameters with their defaults -> outputs, tensors or arrays
Run = Callable[[Any, Mapping[str, Any], Params], Mapping[str, Any]]

# Stable Diffusion's trained levels, as its scheduler_config.json has them.
SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


class TorchStage(NamedTuple):
    """A stage, as the torch engine computes it.

    package: package that must be installed
    refuses: parameters with defaults, names of the inputs -> why the package cannot compute this; None: it can
    run:     torch, tensors, parameters -> outputs
    """

    package: str
    refuses: Callable[[Params, Set[str]], str | None]
    run: Run
