"""Adapters on a tiny UNet: tensors of every kind, their header, PEFT's settings. The answer: each layer's delta."""

import functools
import hashlib
import json
from pathlib import Path
from random import Random

import numpy as np
import small_families as small
import tiny_adapters as tiny
from kind import Files, Kind, Mutation
from mutations import TEXTS, bytes_changed, json_changed, near, number
from safetensors.numpy import save, save_file

from refsd.kernels.adapters import Full
from refsd.weights import Checkpoint, open_checkpoint
from refsd.weights.adapters import build_adapters, open_adapters

FILE, CONFIG, MODEL = "adapter_model.safetensors", "adapter_config.json", "model.safetensors"
TO_Q, CONV = "input_blocks.1.1.transformer_blocks.0.attn1.to_q", "input_blocks.1.0.in_layers.2"
PEFT = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
SETTINGS = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_rslora": False, "use_dora": False, "bias": "none"}
SETTINGS |= {
    "target_modules": ["to_q"],
    "alpha_pattern": {},
    "rank_pattern": {},
    "fan_in_fan_out": False,
    "lora_dropout": 0.1,
}


def _model(folder: Path) -> Path:
    size = small.FAMILIES["sd15"]["unet"]
    path = folder / MODEL
    save_file({f"model.diffusion_model.{n}": a for n, a in small.weights("unet", size).items()}, path)
    return path


@functools.cache
def _checkpoint(path: Path) -> Checkpoint:
    return open_checkpoint(path)


def _examples(folder: Path) -> dict[str, Files]:
    model = _model(folder)
    shapes = {name: _checkpoint(model).components["unet"].weights.shapes[f"{name}.weight"] for name in (TO_Q, CONV)}
    made: dict[str, Files] = {}
    for i, kind in enumerate(tiny.LAYER_KINDS):
        if kind.endswith("_peft"):
            continue
        tensors = {}
        for name, shape in shapes.items():
            if kind == "full" and name == TO_Q:  # which has no bias
                continue
            parts = tiny.parts(kind, shape, i)
            tensors |= {f"diffusion_model.{name}.{part}": np.asarray(a) for part, a in parts.items()}
        made[kind] = {FILE: save(tensors, {"ss_base_model_version": "sd_v1"}), MODEL: model}
    down, up = (np.random.default_rng(i).standard_normal(s).astype("f4") for i, s in enumerate(((2, 32), (32, 2))))
    lora = save({f"{PEFT}.lora_A.weight": down, f"{PEFT}.lora_B.weight": up})
    made["peft"] = {FILE: lora, CONFIG: json.dumps(SETTINGS).encode(), MODEL: model}
    return made


def _mutate(rng: Random, files: Files) -> Mutation:
    content = bytes(files[FILE])  # type: ignore[arg-type]
    length = int.from_bytes(content[:8], "little")
    if CONFIG in files and rng.random() < 0.7:
        settings = json.loads(files[CONFIG])  # type: ignore[arg-type]
        field = rng.choice(["lora_alpha", "use_rslora", "peft_type", "alpha_pattern", "fan_in_fan_out", "json"])
        if field == "json":
            raw, what, _ = json_changed(rng, bytes(files[CONFIG]))  # type: ignore[arg-type]
            return Mutation({**files, CONFIG: raw}, what)
        settings[field] = {
            "lora_alpha": lambda: rng.choice([0, -1, 5, 1e300, float("nan"), True, None, "8", [], number(rng)]),
            "use_rslora": lambda: rng.choice([True, 1, "yes", [1]]),
            "peft_type": lambda: rng.choice(["OFT", "LOHA", "VERA", 5, "lora"]),
            "alpha_pattern": lambda: rng.choice([{"to_q": 8}, {".*to_q": 8}, {"attn1.to_q": 1}, [1]]),
            "fan_in_fan_out": lambda: True,
        }[field]()
        # The tensors' names tell the type.
        # PEFT itself turns fan_in_fan_out off for linear layers.
        changes = field not in ("peft_type", "fan_in_fan_out") and settings[field] != SETTINGS[field]
        return Mutation(
            {**files, CONFIG: json.dumps(settings).encode()}, f"{field} {settings[field]!r:.40}", changes
        )
    kind = rng.choice(["name", "shape", "dtype", "gone", "bytes", "value"])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    if kind == "bytes":
        changed, what = bytes_changed(rng, content)
        return Mutation({**files, FILE: changed}, what)
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    if kind == "name":
        new = rng.choice([name.replace(".to_q", ".to_k"), name.replace("lora_down", "lora_up"), name + "x", *TEXTS])
        if new in header or new == name:
            new = name + ".alpha"
        header[new] = header.pop(name)
        what = f"{name} -> {new!r:.40}"
    elif kind == "shape" and entry["shape"]:
        shape = entry["shape"]
        entry["shape"] = rng.choice(
            [shape[::-1], [*shape, 1], [1, *shape], [int(np.prod(shape))], [near(rng, n) for n in shape]]
        )
        what = f"{name}: {shape} -> {entry['shape']}"
    elif kind == "dtype":
        entry["dtype"] = rng.choice(
            [t for t in ("I32", "U32", "F64", "BF16", "F16", "BOOL", "F8_E4M3") if t != entry["dtype"]]
        )
        what = f"{name}: {entry['dtype']}"
    elif kind == "gone":
        other = {
            n: np.frombuffer(data[slice(*e["data_offsets"])], np.uint8) for n, e in header.items() if "dtype" in e
        }
        rest = {
            n: a.view(np.dtype("<f4" if header[n]["dtype"] == "F32" else "<i8")).reshape(header[n]["shape"])
            for n, a in other.items()
            if n != name
        }
        return Mutation({**files, FILE: save(rest)}, f"no {name}", True)
    else:
        at = entry["data_offsets"][0]
        raw = rng.choice([np.float32(v).tobytes() for v in (np.nan, np.inf, 3e38, 7.5)])
        data = data[:at] + raw + data[at + 4 :]
        what = f"{name}: {np.frombuffer(raw, np.float32)[0]}"
    raw = json.dumps(header).encode()
    # A rotation reads half of its blocks; an alpha counts where there are factors.
    changes = kind == "name" or (kind == "value" and "lora_" in name)
    return Mutation({**files, FILE: len(raw).to_bytes(8, "little") + raw + data}, what, changes)


def _read(folder: Path):
    checkpoint = _checkpoint((folder / MODEL).resolve())
    file = open_adapters(folder / FILE, checkpoint)
    weights = checkpoint.components["unet"].weights
    built = build_adapters(file, "unet", weights.shapes, lambda tensor: np.array(tensor.values(), np.float64))
    found = {}
    for target, adapter in built.items():
        weight = np.array(weights[f"{target.key}.weight"].values(), np.float64)
        delta = adapter.delta(weight, 1.0)
        bias = adapter.bias_delta(np.zeros(len(weight)), 1.0) if isinstance(adapter, Full) else None
        found[target.key] = [type(adapter).__name__, _digest(delta), None if bias is None else _digest(bias)]
    return {"layers": found, "metadata": file.weights.metadata}


def _digest(array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).astype("<f8").tobytes()).hexdigest()


ADAPTERS = Kind("adapters", _examples, _mutate, _read)
