"""Transformers' Mistral and Ministral 3."""

from refsd.models.language_model.original import read, run
from refsd.networks.original import Reader, transformers

ORIGINALS = {
    "mistral": transformers("text_encoder", "AutoModel", run),
}
# Name of the module's class -> readers of its calls.
READERS = {
    "MistralModel": (Reader("mistral", read),),
    "Ministral3Model": (Reader("mistral", read),),
}
