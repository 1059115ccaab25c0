"""safetensors: the header's fields, the bytes, and scales beside the weights. The second reader: the library's."""

import json
from pathlib import Path
from random import Random

import numpy as np
import safetensors
from kind import Files, Kind, Mutation
from mutations import bytes_changed, json_changed, near, number, tree_changed
from readings import tensors_read, values_read
from safetensors.numpy import save

from refsd.files.formats import open_weights
from refsd.files.safetensors import TYPES
from refsd.numerics.tensor import GROUPED_TYPES

FILE = "a.safetensors"
ARRAYS = {
    "model.diffusion_model.input_blocks.0.0.weight": np.ones((32, 4, 3, 3), np.float16),
    "model.diffusion_model.input_blocks.1.0.in_layers.2.weight": np.ones((32, 1, 1, 1), np.float32),
    "model.diffusion_model.input_blocks.3.0.op.weight": np.arange(4, dtype=np.float32).reshape(2, 2),
    "first_stage_model.encoder.down.0.block.0.conv1.weight": np.ones((32, 2), np.float64),
    "first_stage_model.encoder.mid.attn_1.q.weight": np.ones((4, 4), np.float32),
    "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight": np.ones((5, 64), np.float32),
    "alphas_cumprod": np.arange(3),
    "empty": np.ones((0, 4), np.uint8),
    "scalar": np.array(3, np.float32),
}


def _text(value) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def examples(folder: Path) -> dict[str, Files]:
    nested = {"quant_type": "nf4", "blocksize": 64, "shape": [8, 16], "nested_blocksize": 256, "nested_offset": 0.5}
    nf4 = {
        "a.weight": np.arange(64, dtype=np.uint8)[:, None],
        "a.weight.absmax": np.ones(2, np.uint8),
        "a.weight.quant_map": GROUPED_TYPES["nf4"],
        "a.weight.nested_absmax": np.ones(1, np.float32),
        "a.weight.nested_quant_map": np.ones(256, np.float32),
        "a.weight.quant_state.bitsandbytes__nf4": _text(nested),
    }
    nvfp4 = {
        "a.weight": np.arange(1024, dtype=np.uint8).reshape(32, 32),
        "a.weight_scale": np.full((128, 4), 56, np.uint8),
        "a.weight_scale_2": np.float32([1]),
        "a.comfy_quant": _text({"format": "nvfp4"}),
    }
    return {
        "plain": {FILE: save(ARRAYS, {"made": "here", "format": "pt"})},
        "nf4": {FILE: save(nf4)},
        "nvfp4": {FILE: save(nvfp4)},
    }


def mutate(rng: Random, files: Files) -> Mutation:
    """The header as JSON; one tensor's fields; the length; any byte."""
    content = files[FILE]
    length = int.from_bytes(content[:8], "little")
    raw, data = content[8 : 8 + length], content[8 + length :]
    kind = rng.choice(["tree", "tree", "json", "field", "field", "length", "bytes", "bytes", "data"])
    if kind == "tree":
        header, what = tree_changed(rng, json.loads(raw))
        return _with(json.dumps(header).encode(), data, what)
    if kind == "json":
        raw, what, _ = json_changed(rng, raw)
        return _with(raw, data, what)
    if kind == "field":
        header = json.loads(raw)
        name = rng.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        field = rng.choice(["dtype", "shape", "offset", "alias", "swap"])
        if field == "dtype":
            entry["dtype"] = rng.choice([*(kind for kind in TYPES if kind != entry["dtype"]), "F128", "f32"])
        elif field == "shape":
            axis = rng.randrange(len(entry["shape"]) + 1)
            if rng.random() < 0.3 or axis == len(entry["shape"]):
                entry["shape"].insert(axis, rng.choice([0, 2, 3, number(rng)]))
            else:
                entry["shape"][axis] = near(rng, entry["shape"][axis])
        elif field == "offset":
            at = rng.randrange(2)
            entry["data_offsets"][at] = near(rng, entry["data_offsets"][at])
        else:
            other = header[rng.choice([n for n in header if n not in (name, "__metadata__")])]
            first, second = entry["data_offsets"], other["data_offsets"]
            entry["data_offsets"] = second
            if field == "swap":
                other["data_offsets"] = first
        # Packed codes and scales lie in whatever type of one byte they were kept in.
        return _with(
            json.dumps(header).encode(),
            data,
            f"{field} of {name}",
            b"_quant" not in raw and b"quant_state" not in raw,
        )
    if kind == "length":
        claimed = near(rng, length) % 2**64
        return Mutation({FILE: claimed.to_bytes(8, "little") + raw + data}, f"a header of {claimed} bytes")
    if kind == "data":
        changed, what = bytes_changed(rng, data)
        # Of scales not every byte is used: an entry of a table that no weight asks for.
        return _with(
            raw, changed, f"data: {what}", changed != data and b"_quant" not in raw and b"quant_state" not in raw
        )
    changed, what = bytes_changed(rng, content, 8 + length)
    return Mutation({FILE: changed}, what)


def _with(header: bytes, data: bytes, what: str, changes: bool = False) -> Mutation:
    return Mutation({FILE: len(header).to_bytes(8, "little") + header + data}, what, changes)


def read(folder: Path):
    """Type, shape and bytes of every tensor, as the file has them; and values of those that have scales."""
    weights = open_weights(folder / FILE)
    scaled = values_read(weights, weights.scalings)
    return tensors_read(weights) | {
        "helpers": sorted(weights.helpers),
        "metadata": weights.metadata,
        "scaled": scaled,
    }


def second(folder: Path):
    found = dict(safetensors.deserialize((folder / FILE).read_bytes()))
    ours = open_weights(folder / FILE)
    with safetensors.safe_open(folder / FILE, "numpy") as file:
        metadata = file.metadata() or {}
    tensors = {name: _theirs(ours, name, entry) for name, entry in found.items() if name not in ours.helpers}
    known = {"helpers": sorted(ours.helpers & found.keys()), "metadata": metadata}
    return tensors | known | {"scaled": values_read(ours, ours.scalings)}


def _theirs(ours, name: str, entry) -> list:
    """A weight with scales is of refsd's own type and shape: of it, only the bytes are the library's."""
    kind, shape = TYPES[entry["dtype"]][0], list(entry["shape"])
    if name in ours.scalings:
        kind, shape = ours.headers[name].type, list(ours.headers[name].shape)
    return [kind, shape, bytes(entry["data"]).hex()]


def commands(folder: Path) -> list[list[str]]:
    path = str(folder / FILE)
    return [["info", path, "--tensors", "--values"], ["info", path, "--json"], ["compare", path, path]]


SAFETENSORS = Kind("safetensors", examples, mutate, read, second, commands)
