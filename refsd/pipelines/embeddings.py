"""`--embd-dir`: a folder's learned embeddings, behind the tables of a pipeline's CLIP encoders."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refsd.conventions.pictures import Convention
from refsd.files.formats import open_weights
from refsd.files.stored import NamedTensors
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.prompts import CLIP
from refsd.tokenizers.textual_inversion import FIRST, SUFFIXES, Embedding, read_embedding, rows

TABLE = "text_model.embeddings.token_embedding.weight"
_FEW = 20  # tensors; a file of more is no embedding


class _LongerTable(NamedTensors):
    """A text encoder's weights; its table of tokens has more rows, and is expanded to float32."""

    def __init__(self, weights: Mapping[str, StoredTensor], more: np.ndarray):
        table = weights[TABLE].values().astype(np.float32)
        self.names = self._weights = weights
        self._table = stored(np.concatenate([table, more.astype(np.float32)]))

    def __getitem__(self, name: str) -> StoredTensor:
        return self._table if name == TABLE else self._weights[name]


def with_embeddings(pipe: Pipeline, folder: Path, convention: Convention) -> tuple[Pipeline, list[str]]:
    """Read a folder's embeddings for a pipeline.

    -> the pipeline with them, and a line for each file: the name to use in a prompt, or why it does not fit
    Raises BadInput if the model has other text encoders than CLIP, or if no file fits.
    """
    if not pipe.encoders or any(name not in CLIP for name in pipe.encoders):
        raise BadInput(
            f"--embd-dir: {pipe.variant.title} reads prompts with more than CLIP: no embeddings exist for it"
        )
    for encoder in pipe.encoders.values():
        count = encoder.module.weights[TABLE].shape[0]
        if count != FIRST:
            raise BadInput(f"--embd-dir: {encoder.path}: {encoder.name} knows {count} tokens, CLIP {FIRST}")
    widths = {name: encoder.module.weights[TABLE].shape[1] for name, encoder in pipe.encoders.items()}
    embeddings, lines = _read(folder, widths, convention.named_by_token)
    if not embeddings:
        why = lines[0] if lines else f"no {', '.join(SUFFIXES)} in it"
        raise BadInput(f"--embd-dir {folder}: no embedding for this model: {why}")
    pipe.tokenizers.add(embeddings, convention.find_embedding)
    encoders = {name: _longer(encoder, rows(embeddings, name)) for name, encoder in pipe.encoders.items()}
    return pipe._replace(encoders=encoders), lines


def _read(folder: Path, widths: Mapping[str, int], by_token: bool) -> tuple[list[Embedding], list[str]]:
    if not folder.is_dir():
        raise BadInput(f"--embd-dir {folder}: not a folder")
    embeddings: dict[str, Embedding] = {}
    lines = []
    for path in sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES):
        try:
            weights = open_weights(path)
            if len(weights) > _FEW:
                raise BadInput(f"{path}: {len(weights)} tensors, which is no embedding")
            tensors = {name: weights[name].values() for name in weights}
            one = read_embedding(str(path), tensors, widths, by_token)
        except BadInput as error:
            lines.append(f"left out: {error}")
            continue
        if one.name.lower() in embeddings:
            raise BadInput(f"{path}: the embedding {one.name!r} is there twice: rename one of the files")
        embeddings[one.name.lower()] = one
        lines.append(f"embedding {one.name!r}: {one.count} {'vector' if one.count == 1 else 'vectors'}")
    return [*embeddings.values()], lines


def _longer(encoder: LoadedComponent, more: np.ndarray) -> LoadedComponent:
    m = encoder.module
    longer = Module(_LongerTable(m.weights, more), m.arithmetic, cache=m.cache, adapters=m.adapters)
    return encoder._replace(module=longer)
