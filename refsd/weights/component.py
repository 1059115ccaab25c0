"""A component of a checkpoint: its tensors under the original checkpoint's names, read on access."""

from typing import Any, NamedTuple

from refsd.files.finite import not_finite
from refsd.files.stored import LARGE, NamedTensors, Weights, shown
from refsd.networks.dimensions import Shapes
from refsd.networks.keymap import Source
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.size_vote import voted_size


class ComponentWeights(NamedTensors):
    """Map the original checkpoint's tensor names to tensors, read from the file on access.

    The first access to a tensor checks its values: NaN or infinity raises BadInput. Small tensors are read once.
    """

    def __init__(self, weights: Weights, sources: dict[str, Source]):
        self.file = weights
        self.sources = self.names = sources
        in_file = weights.shapes
        self.shapes: Shapes = {name: source.shape(in_file) for name, source in sources.items()}
        self._seen: set[str] = set()
        self._small: dict[str, StoredTensor] = {}

    def __getitem__(self, name: str) -> StoredTensor:
        if name in self._small:
            return self._small[name]
        tensor = self.sources[name].read(self.file)
        if name not in self._seen:
            bad = not_finite(tensor)
            if bad:
                raise BadInput(
                    f"{self.file.path}: tensor {shown(self.sources[name].names[0])}: {bad} of its values are NaN "
                    "or infinite; the file is damaged, or was converted to a type that is too narrow"
                )
            self._seen.add(name)
        if tensor.data.nbytes < LARGE and tensor.scaling is None:
            self._small[name] = tensor
        return tensor


class Component(NamedTuple):
    """One network of a checkpoint, with its weights and hyper-parameters.

    name:    key of NETWORKS: "unet", "vae", "clip", ...
    weights: tensors under the original checkpoint's names, without the component's prefix
    config:  hyper-parameters that shapes do not reveal: num_heads, num_groups, ...
    layout:  naming scheme of the file: "ldm", "original", "diffusers", "transformers", "llama.cpp", ...
    unused:  tensor names in the file under the component's prefix that the network does not have
    extras:  the same, but known leftovers of training or of another model
    """

    name: str
    weights: ComponentWeights
    config: dict[str, Any]
    layout: str
    unused: list[str]
    extras: list[str]

    @property
    def size(self) -> Any:
        """The network's dimensions, a NamedTuple, that most of the tensor shapes agree on."""
        return voted_size(self.name, self.weights.shapes)
