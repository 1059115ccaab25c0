"""What the torch engine needs to know of a stage."""

from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

Params = Mapping[str, Any]
# torch, the inputs as tensors, parameters with their defaults -> outputs, tensors or arrays
Run = Callable[[Any, Mapping[str, Any], Params], Mapping[str, Any]]

# Stable Diffusion's trained levels, as its scheduler_config.json has them.
SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


class TorchStage(NamedTuple):
    """
    package: where the code comes from
    refuses: parameters with their defaults, the inputs' names -> why the package has no code for them; None: it has
    run:     (torch, tensors, parameters) -> outputs
    """

    package: str
    refuses: Callable[[Params, Set[str]], str | None]
    run: Run
