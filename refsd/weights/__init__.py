"""Read weights from files of any layout as one lazy mapping under the original checkpoint's names."""

from refsd.files.formats import open_weights
from refsd.files.stored import Weights
from refsd.weights.checkpoint import Checkpoint, open_checkpoint
from refsd.weights.component import Component
from refsd.weights.problems import check

__all__ = ["Checkpoint", "Component", "Weights", "check", "open_checkpoint", "open_weights"]
