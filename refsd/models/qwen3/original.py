"""Transformers' Qwen3."""

from refsd.models.language_model.original import read, run
from refsd.networks.original import Reader, transformers

ORIGINALS = {
    "qwen3": transformers("text_encoder", "Qwen3Model", run),
}
# Name of the module's class -> readers of its calls.
READERS = {
    "Qwen3Model": (Reader("qwen3", read),),
}
