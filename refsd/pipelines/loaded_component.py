"""A component of a checkpoint with its weights open; errors for missing components."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.components import COMPONENTS, forward, load
from refsd.module import Module, WeightCache
from refsd.networks.fits import Fit
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.weights import Checkpoint
from refsd.weights.adapters import AdapterFile
from refsd.weights.checkpoint import PART_FLAGS

Loras = Sequence[tuple[AdapterFile, float]]


class LoadedComponent(NamedTuple):
    """A component that is ready to run.

    name:   key of COMPONENTS
    module: its weights
    params: params that its config sets
    path:   file that holds it
    """

    name: str
    module: Module
    params: Mapping[str, Any]
    path: Path | None = None

    def __call__(
        self, inputs: Mapping[str, np.ndarray], source: str, also: bool = False, **params
    ) -> dict[str, np.ndarray]:
        return forward(self.name, self.module, inputs, {**self.params, **params}, source, also)

    @property
    def dtype(self) -> np.dtype:
        """Compute dtype of the numerics."""
        return self.module.arithmetic.numerics.compute_dtype

    @property
    def in_diffusers_folder(self) -> bool:
        """True for a text encoder in a diffusers folder."""
        return self.path is not None and self.path.parent.name.startswith("text_encoder")

    @property
    def arguments(self) -> Iterable[str]:
        return COMPONENTS[self.name].arguments

    @property
    def fits(self) -> Mapping[str, Fit]:
        return COMPONENTS[self.name].fits(self.module)

    @property
    def patch(self) -> int:
        """Sides of its latents must be multiples of this."""
        fits = self.fits
        return fits["H"].n if "H" in fits else 1

    @property
    def latent_channels(self) -> int:
        """Channels of a denoiser's output."""
        fits = self.fits
        return fits.get("K", fits["C"]).n


def load_component(
    checkpoint: Checkpoint, name: str, arithmetic: Arithmetic, loras: Loras = (), cache: WeightCache | None = None
) -> LoadedComponent:
    module, params = load(checkpoint, name, arithmetic, cache, loras)
    held = checkpoint.components[COMPONENTS[name].part or ""]
    return LoadedComponent(name, module, params, Path(held.weights.file.path))


def file_flag(component: str) -> str:
    """Return the command-line flag for a file with this component."""
    return next(flag for flag, names in PART_FLAGS.items() if component in names)


def check_present(checkpoint: Checkpoint, needed: Iterable[tuple[str, ...]]) -> None:
    """Raise a BadInput that names every missing component; each tuple lists alternatives."""
    missing = [names for names in needed if not any(name in checkpoint.components for name in names)]
    if missing:
        flags = ", ".join(" or ".join(dict.fromkeys(map(file_flag, names))) for names in missing)
        what = ", ".join("an autoencoder" if "vae" in names else " or ".join(names) for names in missing)
        title = checkpoint.family.title if checkpoint.family else "the model"
        raise BadInput(
            f"{checkpoint.path}: {title} does not hold {what}, which a picture needs: give it with {flags}"
        )
