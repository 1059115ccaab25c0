"""Where other layouts keep the original checkpoint's tensors: tables, and the few rules they need.

A row says that what stands under one prefix here stands under another there. Where their side has
several prefixes, ours is their concatenation. The first row of a prefix is the one that is written;
later rows are read as well.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from refsd.golden.tensor import StoredTensor, stored
from refsd.weights.architecture import Shape


class Rule(NamedTuple):
    """
    shape: the shapes of their parts -> the shape of ours
    join:  their parts, as StoredTensors -> ours
    split: ours, and how many rows each of their parts has -> their parts
    """

    shape: Callable[[Sequence[Shape]], Shape]
    join: Callable[[Sequence[StoredTensor]], StoredTensor]
    split: Callable[[StoredTensor, Sequence[int]], list[StoredTensor]]


class Row(NamedTuple):
    ours: str
    theirs: tuple[str, ...]
    rule: Rule


class Source(NamedTuple):
    """The names in the file that make one of our tensors, and how."""

    names: tuple[str, ...]
    rule: Rule

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        return self.rule.shape([shapes[name] for name in self.names])

    def read(self, weights: Mapping[str, StoredTensor]) -> StoredTensor:
        return self.rule.join([weights[name] for name in self.names])


def _concat(parts: Sequence[StoredTensor]) -> StoredTensor:
    """Stack on the first axis. Rows are whole blocks, so that packed types are stacked as bytes."""
    shape = _concat_shape([part.shape for part in parts])
    if len({part.type for part in parts}) > 1 or any(part.scaling for part in parts):
        arrays = [np.asarray(part.values(), np.float32) for part in parts]
        return StoredTensor("f32", shape, np.concatenate(arrays))
    data = np.concatenate([part.data for part in parts])
    return StoredTensor(parts[0].type, shape, data)


def _concat_shape(shapes: Sequence[Shape]) -> Shape:
    return (sum(shape[0] for shape in shapes if shape), *shapes[0][1:])


def _split_rows(tensor: StoredTensor, rows: Sequence[int]) -> list[StoredTensor]:
    if tensor.scaling:
        tensor = stored(tensor.values())
    per_row = len(tensor.data) // tensor.shape[0]
    ends = np.cumsum(rows)
    return [
        StoredTensor(tensor.type, (n, *tensor.shape[1:]), tensor.data[(end - n) * per_row : end * per_row])
        for n, end in zip(rows, ends, strict=True)
    ]


def _reshaped(tensor: StoredTensor, shape: Shape) -> StoredTensor:
    data = tensor.data if tensor.data.ndim == 1 else tensor.data.reshape(shape)
    return tensor._replace(shape=shape, data=data)


def _pointwise_shape(shapes: Sequence[Shape]) -> Shape:
    (shape,) = shapes
    return (*shape, 1, 1) if len(shape) == 2 else shape


def _swap_halves(tensor: StoredTensor) -> StoredTensor:
    half = tensor.shape[0] // 2
    shift, scale = _split_rows(tensor, (half, tensor.shape[0] - half))
    return _concat((scale, shift))


SAME = Rule(lambda shapes: shapes[0], lambda parts: parts[0], lambda tensor, _: [tensor])
CONCAT = Rule(_concat_shape, _concat, _split_rows)
# A 1x1 convolution [K, C, 1, 1] that they keep as a linear layer [K, C].
POINTWISE = Rule(
    _pointwise_shape,
    lambda parts: _reshaped(parts[0], _pointwise_shape([parts[0].shape])),
    lambda tensor, _: [_reshaped(tensor, tensor.shape[:2])],
)
# Shift and scale stand in the other order.
SWAP = Rule(
    lambda shapes: shapes[0],
    lambda parts: _swap_halves(parts[0]),
    lambda tensor, _: [_swap_halves(tensor)],
)


class Keymap:
    """Rows, looked up by a name's longest known prefix. What no row knows keeps its name if `rest_same`."""

    def __init__(self, rows: Iterable[Row], rest_same: bool = False):
        self.rest_same = rest_same
        self._ours: dict[str, Row] = {}
        self._theirs: dict[str, Row] = {}
        for row in rows:
            self._ours.setdefault(row.ours, row)
            for prefix in row.theirs:
                self._theirs[prefix] = row

    def theirs(self, name: str) -> Source | None:
        """Our name -> theirs."""
        return _find(self._ours, name, lambda row, leaf: Source(tuple(p + leaf for p in row.theirs), row.rule)) or (
            Source((name,), SAME) if self.rest_same else None
        )

    def ours(self, name: str) -> tuple[str, Source] | None:
        """Their name -> ours, and all that ours is made of."""
        return _find(
            self._theirs,
            name,
            lambda row, leaf: (row.ours + leaf, Source(tuple(p + leaf for p in row.theirs), row.rule)),
        ) or ((name, Source((name,), SAME)) if self.rest_same else None)

    def sources(self, names: Iterable[str]) -> tuple[dict[str, Source], list[str]]:
        """Their names -> where each of ours comes from; and the names that make none of ours."""
        names = list(names)
        there = set(names)
        found: dict[str, Source] = {}
        rest = []
        for name in names:
            hit = self.ours(name)
            if hit is None or not there.issuperset(hit[1].names) or name not in found.setdefault(*hit).names:
                rest.append(name)
        return found, rest

    def write(self, weights: Mapping[str, StoredTensor], rows: Mapping[str, Sequence[int]] | None = None):
        """Our tensors -> theirs. `rows` gives the rows of the parts of what must be split, else equal parts.

        Raises KeyError for a name that no row knows.
        """
        out: dict[str, StoredTensor] = {}
        for name, tensor in weights.items():
            source = self.theirs(name)
            if source is None:
                raise KeyError(name)
            n = len(source.names)
            parts = (rows or {}).get(name) or [tensor.shape[0] // n] * n
            out.update(zip(source.names, source.rule.split(tensor, parts), strict=True))
        return out


def _find(table: Mapping[str, Row], name: str, found):
    end = len(name)
    while end > 0:
        if name[:end] in table:
            return found(table[name[:end]], name[end:])
        end = name.rfind(".", 0, end)
    return None


def _rows(pairs: Iterable[tuple[str, str]], ours: str = "", theirs: str = "", rule: Rule = SAME) -> list[Row]:
    return [Row(ours + a, (theirs + b,), rule) for a, b in pairs]


# Stable Diffusion 1.x, diffusers: ours, theirs.

UNET_ENDS = (
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("input_blocks.0.0", "conv_in"),
    ("out.0", "conv_norm_out"),
    ("out.2", "conv_out"),
    ("middle_block.1", "mid_block.attentions.0"),
)
UNET_RESNET = (
    ("in_layers.0", "norm1"),
    ("in_layers.2", "conv1"),
    ("emb_layers.1", "time_emb_proj"),
    ("out_layers.0", "norm2"),
    ("out_layers.3", "conv2"),
    ("skip_connection", "conv_shortcut"),
)
VAE_ENDS = (
    ("encoder.conv_in", "encoder.conv_in"),
    ("encoder.norm_out", "encoder.conv_norm_out"),
    ("encoder.conv_out", "encoder.conv_out"),
    ("decoder.conv_in", "decoder.conv_in"),
    ("decoder.norm_out", "decoder.conv_norm_out"),
    ("decoder.conv_out", "decoder.conv_out"),
    ("quant_conv", "quant_conv"),
    ("post_quant_conv", "post_quant_conv"),
)
VAE_RESNET = (
    ("norm1", "norm1"),
    ("conv1", "conv1"),
    ("norm2", "norm2"),
    ("conv2", "conv2"),
    ("nin_shortcut", "conv_shortcut"),
)
VAE_ATTENTION = (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("proj_out", "to_out.0"))
VAE_ATTENTION_OLD = (("q", "query"), ("k", "key"), ("v", "value"), ("proj_out", "proj_attn"))
CLIP_HEADLESS = (
    ("text_model.embeddings", "embeddings"),
    ("text_model.encoder", "encoder"),
    ("text_model.final_layer_norm", "final_layer_norm"),
)


def unet(levels: int = 4, res_blocks: int = 2, attention: Iterable[int] = (0, 1, 2)) -> Keymap:
    """SD 1.x UNet <-> diffusers' UNet2DConditionModel. `attention`: the levels that have transformers."""
    attention = set(attention)
    step = res_blocks + 1
    rows = _rows(UNET_ENDS)
    for i in (0, 1):
        rows += _rows(UNET_RESNET, f"middle_block.{2 * i}.", f"mid_block.resnets.{i}.")
    for level in range(levels):
        down, up = f"down_blocks.{level}", f"up_blocks.{level}"
        for i in range(res_blocks):
            at = f"input_blocks.{1 + level * step + i}"
            rows += _rows(UNET_RESNET, f"{at}.0.", f"{down}.resnets.{i}.")
            rows += _rows([(f"{at}.1", f"{down}.attentions.{i}")])
        rows += _rows([(f"input_blocks.{(level + 1) * step}.0.op", f"{down}.downsamplers.0.conv")])
        for i in range(step):
            at = f"output_blocks.{level * step + i}"
            rows += _rows(UNET_RESNET, f"{at}.0.", f"{up}.resnets.{i}.")
            rows += _rows([(f"{at}.1", f"{up}.attentions.{i}")])
        place = 1 + (levels - 1 - level in attention)
        rows += _rows([(f"output_blocks.{level * step + res_blocks}.{place}.conv", f"{up}.upsamplers.0.conv")])
    return Keymap(rows)


def vae(levels: int = 4, res_blocks: int = 2) -> Keymap:
    """SD's autoencoder <-> diffusers' AutoencoderKL, whose attention is linear; old names are read too."""
    rows = _rows(VAE_ENDS)
    for side in ("encoder", "decoder"):
        ours, theirs = f"{side}.mid", f"{side}.mid_block"
        for i in (0, 1):
            rows += _rows(VAE_RESNET, f"{ours}.block_{1 + i}.", f"{theirs}.resnets.{i}.")
        rows += _rows([("norm", "group_norm")], f"{ours}.attn_1.", f"{theirs}.attentions.0.")
        for names in (VAE_ATTENTION, VAE_ATTENTION_OLD):
            rows += _rows(names, f"{ours}.attn_1.", f"{theirs}.attentions.0.", POINTWISE)
    for level in range(levels):
        down, up = f"encoder.down_blocks.{level}", f"decoder.up_blocks.{levels - 1 - level}"
        for i in range(res_blocks + 1):
            rows += _rows(VAE_RESNET, f"encoder.down.{level}.block.{i}.", f"{down}.resnets.{i}.")
            rows += _rows(VAE_RESNET, f"decoder.up.{level}.block.{i}.", f"{up}.resnets.{i}.")
        rows += _rows([(f"encoder.down.{level}.downsample.conv", f"{down}.downsamplers.0.conv")])
        rows += _rows([(f"decoder.up.{level}.upsample.conv", f"{up}.upsamplers.0.conv")])
    return Keymap(rows)


def vae_original() -> Keymap:
    """The original names, where some tools have made the attention linear."""
    rows = []
    for side in ("encoder", "decoder"):
        at = f"{side}.mid.attn_1."
        rows += _rows([(ours, ours) for ours, _ in VAE_ATTENTION], at, at, POINTWISE)
    return Keymap(rows, rest_same=True)


def clip() -> Keymap:
    """transformers' CLIPTextModel, which from version 5 on writes no `text_model.`; and text_projection."""
    same = ["text_projection", *(ours for ours, _ in CLIP_HEADLESS)]
    return Keymap(_rows((name, name) for name in same) + _rows(CLIP_HEADLESS))


# Flux, diffusers: ours, theirs (several: concatenated), rule.

FLUX_ENDS = (
    ("img_in", ("x_embedder",), SAME),
    ("txt_in", ("context_embedder",), SAME),
    ("time_in.in_layer", ("time_text_embed.timestep_embedder.linear_1",), SAME),
    ("time_in.out_layer", ("time_text_embed.timestep_embedder.linear_2",), SAME),
    ("vector_in.in_layer", ("time_text_embed.text_embedder.linear_1",), SAME),
    ("vector_in.out_layer", ("time_text_embed.text_embedder.linear_2",), SAME),
    ("guidance_in.in_layer", ("time_text_embed.guidance_embedder.linear_1",), SAME),
    ("guidance_in.out_layer", ("time_text_embed.guidance_embedder.linear_2",), SAME),
    ("final_layer.linear", ("proj_out",), SAME),
    ("final_layer.adaLN_modulation.1", ("norm_out.linear",), SWAP),
)
FLUX_DOUBLE = (
    ("img_mod.lin", ("norm1.linear",), SAME),
    ("txt_mod.lin", ("norm1_context.linear",), SAME),
    ("img_attn.qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
    ("txt_attn.qkv", ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), CONCAT),
    ("img_attn.norm.query_norm.scale", ("attn.norm_q.weight",), SAME),
    ("img_attn.norm.key_norm.scale", ("attn.norm_k.weight",), SAME),
    ("txt_attn.norm.query_norm.scale", ("attn.norm_added_q.weight",), SAME),
    ("txt_attn.norm.key_norm.scale", ("attn.norm_added_k.weight",), SAME),
    ("img_attn.proj", ("attn.to_out.0",), SAME),
    ("txt_attn.proj", ("attn.to_add_out",), SAME),
    ("img_mlp.0", ("ff.net.0.proj",), SAME),
    ("img_mlp.2", ("ff.net.2",), SAME),
    ("txt_mlp.0", ("ff_context.net.0.proj",), SAME),
    ("txt_mlp.2", ("ff_context.net.2",), SAME),
)
FLUX_SINGLE = (
    ("modulation.lin", ("norm.linear",), SAME),
    ("linear1", ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), CONCAT),
    ("linear2", ("proj_out",), SAME),
    ("norm.query_norm.scale", ("attn.norm_q.weight",), SAME),
    ("norm.key_norm.scale", ("attn.norm_k.weight",), SAME),
)


def flux(double_blocks: int = 19, single_blocks: int = 38) -> Keymap:
    """Flux.1 <-> diffusers' FluxTransformer2DModel, which splits q, k, v and swaps the last scale and shift."""
    rows = [Row(*row) for row in FLUX_ENDS]
    for table, n, ours, theirs in (
        (FLUX_DOUBLE, double_blocks, "double_blocks", "transformer_blocks"),
        (FLUX_SINGLE, single_blocks, "single_blocks", "single_transformer_blocks"),
    ):
        for i in range(n):
            for name, parts, rule in table:
                there = tuple(f"{theirs}.{i}.{part}" for part in parts)
                rows.append(Row(f"{ours}.{i}.{name}", there, rule))
    return Keymap(rows)
