"""OpenCLIP's names of a CLIP text encoder, where q, k and v are fused and the projection is transposed."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from refsd.networks.keymap import CONCAT, Keymap, Row, Rule, Source, block_rows, prefix_rows
from refsd.numerics.tensor import StoredTensor, stored


def _third(part: int) -> Rule:
    """Return the rule that reads one third of the rows of a fused tensor. OpenCLIP.write joins the thirds again."""

    def join(parts: Sequence[StoredTensor]) -> StoredTensor:
        n = parts[0].shape[0] // 3
        return CONCAT.split(parts[0], (n, n, parts[0].shape[0] - 2 * n))[part]

    return Rule(lambda shapes: (shapes[0][0] // 3, *shapes[0][1:]), join, lambda tensor, _: [tensor])


def _transposed(tensor: StoredTensor) -> StoredTensor:
    return stored(np.ascontiguousarray(tensor.values().T))


_THIRDS = tuple(_third(part) for part in range(3))
_TRANSPOSED = Rule(
    lambda shapes: shapes[0][::-1], lambda parts: _transposed(parts[0]), lambda tensor, _: [_transposed(tensor)]
)
# (transformers' name, OpenCLIP's name[, rule])
_ENDS = (
    ("text_model.embeddings.token_embedding", "token_embedding"),
    ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
    ("text_model.final_layer_norm", "ln_final"),
    ("text_projection.weight", "text_projection", _TRANSPOSED),
)
_LAYER = (
    ("layer_norm1", "ln_1"),
    ("layer_norm2", "ln_2"),
    ("self_attn.out_proj", "attn.out_proj"),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
)
_LAYERS, _BLOCKS = "text_model.encoder.layers", "transformer.resblocks"
_QKV = ("q_proj", "k_proj", "v_proj")
_LEAVES = ("weight", "bias")


class OpenCLIP(Keymap):
    """A Keymap that reads q, k and v from one fused tensor.

    layers: number of layers in the file; SD 2's holds 24, of which transformers keeps 23
    """

    def __init__(self, layers: int):
        rows = prefix_rows(_ENDS) + block_rows(layers, _LAYERS, _BLOCKS, _LAYER)
        self._joined: dict[str, list[str]] = {}
        for i in range(layers):
            at, there = f"{_LAYERS}.{i}.", f"{_BLOCKS}.{i}."
            for leaf in _LEAVES:
                name = f"{there}attn.in_proj_{leaf}"
                self._joined[name] = [f"{at}self_attn.{part}.{leaf}" for part in _QKV]
                rows += [Row(ours, (name,), rule) for ours, rule in zip(self._joined[name], _THIRDS, strict=True)]
        super().__init__(rows)

    def sources(self, names: Iterable[str]) -> tuple[dict[str, Source], list[str]]:
        names = list(names)
        found, rest = super().sources(name for name in names if name not in self._joined)
        for name in names:
            for ours, rule in zip(self._joined.get(name, ()), _THIRDS, strict=False):
                found[ours] = Source((name,), rule)
        return found, rest

    def write(
        self, weights: Mapping[str, StoredTensor], rows: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, StoredTensor]:
        out: dict[str, StoredTensor] = {}
        left = dict(weights)
        for name, parts in self._joined.items():
            if all(part in left for part in parts):
                out[name] = CONCAT.join([left.pop(part) for part in parts])
        return super().write(left, rows) | out
