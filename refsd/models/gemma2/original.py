"""Transformers' Gemma 2."""

from refsd.models.language_model.original import run
from refsd.networks.original import transformers

ORIGINALS = {
    "gemma2": transformers("text_encoder", "Gemma2Model", run),
}
