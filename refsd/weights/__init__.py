"""Read weights from files of any layout as one lazy mapping under the original checkpoint's names."""

from refsd.weights.checkpoint import Checkpoint, open_checkpoint
from refsd.weights.component import Component
from refsd.weights.files import open_weights
from refsd.weights.problems import check
from refsd.weights.stored import Weights

__all__ = ["Checkpoint", "Component", "Weights", "check", "open_checkpoint", "open_weights"]
