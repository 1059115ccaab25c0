"""A component of a checkpoint: its tensors under the original's names, read when asked for."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from refsd.networks import NETWORKS
from refsd.networks.dimensions import Shapes
from refsd.networks.keymap import Source
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.finite import not_finite
from refsd.weights.stored import Weights, shown


class ComponentWeights(Mapping[str, StoredTensor]):
    """Canonical name -> tensor, read from the file when asked for.

    The first reading of a tensor looks at its values: NaN or infinity raises BadInput.
    """

    def __init__(self, weights: Weights, sources: dict[str, Source]):
        self.file = weights
        self.sources = sources
        file_shapes = {name: header.shape for name, header in weights.headers.items()}
        self.shapes: Shapes = {name: source.shape(file_shapes) for name, source in sources.items()}
        self._seen: set[str] = set()

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self.sources[name].read(self.file)
        if name not in self._seen:
            bad = not_finite(tensor)
            if bad:
                raise BadInput(
                    f"{self.file.path}: tensor {shown(self.sources[name].names[0])}: {bad} of its values are NaN "
                    "or infinite; the file is damaged, or was converted to a type that is too narrow"
                )
            self._seen.add(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __contains__(self, name: object) -> bool:
        return name in self.sources


class Component(NamedTuple):
    """
    name:    a key of ARCHITECTURES: "unet", "vae", "clip", ...
    weights: under the original checkpoint's names, without the component's prefix
    config:  what the shapes do not tell: num_heads, num_groups, ...
    layout:  whose names the file has: "ldm", "original", "diffusers", "transformers", "llama.cpp"
    unused:  names in the file that stand with the component and make none of its tensors
    extras:  the same, but known: what training or another model left there
    """

    name: str
    weights: ComponentWeights
    config: dict[str, Any]
    layout: str
    unused: list[str]
    extras: list[str]

    @property
    def size(self) -> Any:
        """The NamedTuple that its architecture reads from shapes."""
        return NETWORKS[self.name].size(self.weights.shapes)
