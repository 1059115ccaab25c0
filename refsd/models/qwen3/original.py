"""Transformers' Qwen3."""

from refsd.models.language_model.original import read, run
from refsd.networks.original import transformers

ORIGINALS = {
    "qwen3": transformers("text_encoder", "Qwen3Model", run, read=read),
}
