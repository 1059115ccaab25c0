"""Bugs of loaders and adapters: the file's tensors read and multiplied out by hand."""

import re

import numpy as np
from injection import Injection, wrong_answer

# --- adapters: the file's tensors multiplied out by hand ---------------------------------------------------------


def modules_of(values) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, value in values.items():
        for end, part in (
            *((".lora_down.weight", "down"), (".lora_up.weight", "up"), (".lora_mid.weight", "mid")),
            *((".lora_A.weight", "down"), (".lora_B.weight", "up"), (".alpha", "alpha"), (".rescale", "rescale")),
            *((".hada_w1_a", "w1_a"), (".hada_w1_b", "w1_b"), (".hada_w2_a", "w2_a"), (".hada_w2_b", "w2_b")),
            *((".lokr_w1", "lokr_w1"), (".lokr_w2", "lokr_w2"), (".lokr_w2_a", "lokr_w2_a")),
            *((".lokr_w2_b", "lokr_w2_b"), (".dora_scale", "magnitude"), (".oft_blocks", "oft")),
            *((".hada_t1", "t1"), (".hada_t2", "t2"), (".lora_magnitude_vector", "magnitude")),
        ):
            if name.endswith(end):
                found.setdefault(name.removesuffix(end), {})[part] = value
    return found


def strength_of(params) -> float:
    tag = params.get("tag", "")
    if not tag:
        return params.get("strength", 1.0)
    numbers = [float(n) for n in re.findall(r":([-+.\d]+)", tag)]
    return numbers[-1] if params.get("component", "unet") == "unet" else numbers[0]


def product_of(parts) -> np.ndarray:
    """up (mid) down, a matrix or a filter."""
    down, up = parts["down"], parts["up"].reshape(len(parts["up"]), -1)
    if "mid" in parts:
        return np.einsum("ok,klrs,li->oirs", up, parts["mid"], down.reshape(len(down), -1))
    return np.tensordot(up, down, 1)


def _rank(parts) -> int:
    return len(parts["down"])


def _plain_lora(scale, rows=None, strength=strength_of, skip=lambda own, whole: False):
    """Low-rank files alone. scale: parts, all modules -> factor"""

    def change(case, values, y):
        modules = modules_of(values)
        if any("down" not in parts or "magnitude" in parts for parts in modules.values()):
            return None
        weight = values["weight"].copy()
        for name, parts in modules.items():
            first, count = case.params.get("rows", {}).get(name, (0, len(weight)))
            if skip(count, len(weight)):
                continue
            factor = strength(case.params) * scale(parts, modules)
            which = (first + np.arange(count)) % len(weight)
            weight[which] += factor * product_of(parts).reshape(count, *weight.shape[1:])
        return {"merged": weight}

    return change


def alpha_of(parts) -> float:
    return float(parts["alpha"]) if "alpha" in parts else float(_rank(parts))


def _right_scale(parts, modules) -> float:
    return alpha_of(parts) / _rank(parts)


def _global_alpha(parts, modules) -> float:
    """The stored alpha is that of the first layer's rank."""
    first = next(iter(modules.values()))
    return alpha_of(parts) / _rank(first)


def _deltas_by_token(case, values, y):
    """The parts' answers one behind the other along the tokens: here, of the identity's rows."""
    modules = modules_of(values)
    if len({len(parts.get("up", ())) for parts in modules.values()}) != 1 or len(modules) < 2:
        return None
    deltas = [_right_scale(parts, modules) * product_of(parts) for parts in modules.values()]
    joined = np.concatenate([delta.T for delta in deltas], axis=0)  # [3 I, O / 3] of I tokens
    if joined.size != values["weight"].size:  # the modules of two streams, not the parts of one layer
        return None
    return {"merged": values["weight"] + joined.reshape(values["weight"].T.shape).T}


def _loha_first_factor(case, values, y):
    parts = next(iter(modules_of(values).values()))
    if "w1_a" not in parts or "t1" in parts:
        return None
    rank = parts["w1_b"].shape[0]
    both = (parts["w1_a"] @ parts["w1_b"]) * (parts["w1_a"] @ parts["w2_b"])
    return {"merged": values["weight"] + float(parts["alpha"]) / rank * both}


def _without_scalar(case, values, y):
    """The learned factor of the whole delta is not read."""
    scalar = next((float(v) for name, v in values.items() if name.endswith(".scalar")), None)
    if scalar is None:
        return None
    return {"merged": values["weight"] + (y["merged"] - values["weight"]) / scalar}


def _dora(axis: int, inner_strength: bool):
    def change(case, values, y):
        parts = next(iter(modules_of(values).values()))
        if "magnitude" not in parts or "down" not in parts or case.params.get("rule") == "comfyui":
            return None
        weight, m = values["weight"], case.params.get("strength", 1.0)
        delta = _right_scale(parts, {}) * product_of(parts)
        if axis == 1 and weight.shape[0] != weight.shape[1]:
            return None
        magnitude = parts["magnitude"].reshape((-1, 1) if axis == 0 else (1, -1))
        merged = weight + (m * delta if inner_strength else delta)
        length = np.sqrt((merged**2).sum(axis=1 - axis, keepdims=True))
        factor = magnitude / length
        return {"merged": merged * (factor if inner_strength else 1 + m * (factor - 1))}

    return change


def _without_dora(case, values, y):
    parts = next(iter(modules_of(values).values()))
    if "magnitude" not in parts or "down" not in parts:
        return None
    delta = _right_scale(parts, {}) * product_of(parts)
    return {"merged": values["weight"] + case.params.get("strength", 1.0) * delta}


def _rescale_of_columns(case, values, y):
    parts = next(iter(modules_of(values).values()))
    if not {"oft", "rescale"} <= parts.keys() or parts["oft"].ndim == 4:
        return None
    turned = y["merged"].astype(np.float64) / parts["rescale"].reshape(-1, 1)
    return {"merged": turned * parts["rescale"].reshape(1, -1)}


# --- loaders -----------------------------------------------------------------------------------------------------


def _read_reversed(case, values, y):
    """Dimensions as the file lists them, the innermost first, taken for the network's."""
    ne = case.params["ne"]
    if len(ne) < 4 or 1 in ne or "second" in values:
        return None
    return {"weight": values["data"].reshape(ne).T}


def _square_transposed(case, values, y):
    weight = y["weight"]
    square = weight.ndim == 2 and len(weight) == weight.shape[1] and "second" not in values
    return {"weight": weight.T} if square else None


def _bytes_of_float16(case, values, y):
    if "added" not in values:
        return None
    added = values["added"]
    read = np.frombuffer(added.astype(np.float32).tobytes(), np.float16)[: added.size].astype(np.float64)
    weight = np.array(y["weight"], np.float64)
    weight[-len(added) :] = np.where(np.isfinite(read), read, 0).reshape(added.shape)
    return {"weight": weight}


FILES: dict[str, Injection] = {
    "conv-16": wrong_answer(
        "weights/*",
        "weight",
        "rows and columns",
        lambda case, v, y: (
            {"weight": y["weight"].reshape(16, 16).T.reshape(y["weight"].shape)}
            if case.params.get("join") == "pointwise"
            else None
        ),
    ),
    "gen-14": wrong_answer("weights/*", "weight", "rows and columns swapped|transposed", _square_transposed),
    "gen-15": wrong_answer(
        "adapter/*", "merged", "rank over alpha", _plain_lora(lambda parts, all: _rank(parts) / alpha_of(parts))
    ),
    "lora-03": wrong_answer("adapter/*", "merged", "along the (tokens|inputs)", _deltas_by_token),
    "lora-04": wrong_answer(
        "adapter/*", "merged", "left out", _plain_lora(_right_scale, skip=lambda own, whole: own != whole)
    ),
    "lora-06": wrong_answer(
        "adapter/tag-*",
        "merged",
        "strength (1|left out)",
        _plain_lora(
            _right_scale, strength=lambda p: 1.0 if p.get("component", "unet") == "unet" else strength_of(p)
        ),
    ),
    "lora-09": wrong_answer("adapter/*", "merged", "alpha over the first", _plain_lora(_global_alpha)),
    "lora-11": wrong_answer("adapter/*", "merged", "alpha missing", _plain_lora(lambda parts, all: 1.0)),
    "lora-13": wrong_answer("adapter/*", "merged", "first factor's a", _loha_first_factor),
    "lora-15": wrong_answer("adapter/*", "merged", "scalar", _without_scalar),
    "lora-17": wrong_answer("adapter/*", "merged", "strength on the delta", _dora(0, True)),
    "lora-18": wrong_answer("adapter/*", "merged", "columns", _dora(1, False)),
    "lora-20": wrong_answer("adapter/*", "merged", "rescale along the columns", _rescale_of_columns),
    "lora-23": wrong_answer("adapter/*", "merged", "DoRA left out", _without_dora),
    "q-12": wrong_answer("weights/*", "weight", "column by column|taps first|reverse", _read_reversed),
    "q-16": wrong_answer("weights/*", "weight", "rows and columns swapped", _square_transposed),
    "te-24": wrong_answer("weights/*", "weight", "float16's bytes", _bytes_of_float16),
}
