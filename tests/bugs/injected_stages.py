"""Bugs on the way from a prompt and files to a picture: prompts, conditioning, loaders, adapters, latents, tiles.

Written here a second time: a part of a rule, an answer computed from the file's tensors, or another question.
"""

import re

import numpy as np
from injection import Bug, Injection

from refsd.families.family import LatentScale
from refsd.samplers.parameterization import Prediction


def _parts(cases: str, place: str, cause: str, **parts) -> Injection:
    return Injection((f"stage/{cases}",), Bug(parts=parts), place, cause)


def _answer(cases: str, place: str, cause: str, change) -> Injection:
    """change: case, values of the inputs, outputs -> wrong outputs, or None where there is no difference"""

    def answer(case, inputs, y):
        wrong = change(case, {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}, y)
        return {**y, **{k: np.asarray(v).astype(y[k].dtype) for k, v in (wrong or {}).items()}}

    return Injection((f"stage/{cases}",), Bug(answer=answer), place, cause)


def _asked(cases: str, place: str, cause: str, **changes) -> Injection:
    """The stage is asked another parameter: a function of the right one."""

    def asked(right):
        own = {k: change(right.params[k]) for k, change in changes.items() if k in right.params}
        return right._replace(params={**right.params, **own})

    return Injection((f"stage/{cases}",), Bug(asked=asked), place, cause)


# --- adapters: the file's tensors multiplied out by hand ---------------------------------------------------------


def _modules(values) -> dict[str, dict[str, np.ndarray]]:
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


def _strength(params) -> float:
    tag = params.get("tag", "")
    if not tag:
        return params.get("strength", 1.0)
    numbers = [float(n) for n in re.findall(r":([-+.\d]+)", tag)]
    return numbers[-1] if params.get("component", "unet") == "unet" else numbers[0]


def _product(parts) -> np.ndarray:
    """up (mid) down, a matrix or a filter."""
    down, up = parts["down"], parts["up"].reshape(len(parts["up"]), -1)
    if "mid" in parts:
        return np.einsum("ok,klrs,li->oirs", up, parts["mid"], down.reshape(len(down), -1))
    return np.tensordot(up, down, 1)


def _rank(parts) -> int:
    return len(parts["down"])


def _plain_lora(scale, rows=None, strength=_strength, skip=lambda own, whole: False):
    """Low-rank files alone. scale: parts, all modules -> factor"""

    def change(case, values, y):
        modules = _modules(values)
        if any("down" not in parts or "magnitude" in parts for parts in modules.values()):
            return None
        weight = values["weight"].copy()
        for name, parts in modules.items():
            first, count = case.params.get("rows", {}).get(name, (0, len(weight)))
            if skip(count, len(weight)):
                continue
            factor = strength(case.params) * scale(parts, modules)
            weight[first : first + count] += factor * _product(parts).reshape(count, *weight.shape[1:])
        return {"merged": weight}

    return change


def _alpha(parts) -> float:
    return float(parts["alpha"]) if "alpha" in parts else float(_rank(parts))


def _right_scale(parts, modules) -> float:
    return _alpha(parts) / _rank(parts)


def _global_alpha(parts, modules) -> float:
    """The stored alpha is that of the first layer's rank."""
    first = next(iter(modules.values()))
    return _alpha(parts) / _rank(first)


def _deltas_by_token(case, values, y):
    """The parts' answers one behind the other along the tokens: here, of the identity's rows."""
    modules = _modules(values)
    if len(modules) < 2:
        return None
    deltas = [_right_scale(parts, modules) * _product(parts) for parts in modules.values()]
    joined = np.concatenate([delta.T for delta in deltas], axis=0)  # [3 I, O / 3] of I tokens
    return {"merged": values["weight"] + joined.reshape(values["weight"].T.shape).T}


def _loha_first_factor(case, values, y):
    parts = next(iter(_modules(values).values()))
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
        parts = next(iter(_modules(values).values()))
        if "magnitude" not in parts or "down" not in parts or case.params.get("rule") == "comfyui":
            return None
        weight, m = values["weight"], case.params.get("strength", 1.0)
        delta = _right_scale(parts, {}) * _product(parts)
        if axis == 1 and weight.shape[0] != weight.shape[1]:
            return None
        magnitude = parts["magnitude"].reshape((-1, 1) if axis == 0 else (1, -1))
        merged = weight + (m * delta if inner_strength else delta)
        length = np.sqrt((merged**2).sum(axis=1 - axis, keepdims=True))
        factor = magnitude / length
        return {"merged": merged * (factor if inner_strength else 1 + m * (factor - 1))}

    return change


def _without_dora(case, values, y):
    parts = next(iter(_modules(values).values()))
    if "magnitude" not in parts or "down" not in parts:
        return None
    delta = _right_scale(parts, {}) * _product(parts)
    return {"merged": values["weight"] + case.params.get("strength", 1.0) * delta}


def _rescale_of_columns(case, values, y):
    parts = next(iter(_modules(values).values()))
    if "oft" not in parts:
        return None
    weight, blocks = values["weight"], parts["oft"]
    n, size = blocks.shape[:2]
    eye = np.eye(size)
    skew = blocks - blocks.swapaxes(1, 2)
    turned = np.concatenate(
        [(eye + q) @ np.linalg.inv(eye - q) @ part for q, part in zip(skew, np.split(weight, n), strict=True)]
    )
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


# --- prompts -----------------------------------------------------------------------------------------------------

_CUT = re.compile(r"\[([^\]]*):([^\]]*):([.\d]+)\]")


def _twice_the_steps(case, values, y):
    p, found = case.params, _CUT.findall(case.params["prompt"])
    if p.get("calls", 1) < 2:
        return None
    second = np.array(y["second"])
    for b, (_, _, number) in enumerate(found):
        if "." in number:
            last = min(p["steps"], int(float(number) * 2 * p["steps"]))
            second[:, b] = np.arange(len(second)) // p["calls"] + 1 > last
    return {"second": second}


def _ids_of_capitals(encode):
    """Bytes of a capital letter, as no merge has one; each begins a word anew."""
    letters = {chr(c): c - 33 for c in range(65, 91)}

    def ids(text):
        found = []
        for word in re.findall(
            r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+", text
        ):
            pieces = [word] if word.startswith("<|") else re.findall("[A-Z]|[^A-Z]+", word)
            for i, piece in enumerate(pieces):
                last = i == len(pieces) - 1
                found += [letters[piece] + (256 if last else 0)] if piece in letters else encode(piece)
        return found

    return ids


def _one_token_more(case, values, y):
    mask = np.array(y["mask"])
    if mask.all():
        return None
    for row in mask:
        row[int(row.sum())] = 1
    return {"mask": mask}


def _each_empty_text(parts):
    """Nothing is left out, and nothing joined."""
    return list(parts)


def _encode_with_ends(tokenizer, text):
    return [*tokenizer.encode(text), *([tokenizer.ends.eos] if tokenizer.ends.eos is not None and not text else [])]


# --- pictures and latents ----------------------------------------------------------------------------------------


def _unshifted(family, kind):
    from refsd.families import LATENT_SCALES

    return None if kind == "tae" else LatentScale(LATENT_SCALES[family].factor, 0.0, "")


def _of_sd3(family, kind):
    from refsd.families import LATENT_SCALES

    if kind == "tae":
        return None
    return LatentScale(1.5305, 0.0609, "") if family == "flux" else LATENT_SCALES[family]


def _tiny_too(family, kind):
    from refsd.families import LATENT_SCALES

    return LATENT_SCALES[family]


def _tiles(case, values, run):
    """diffusers' tiles by hand. run: (tile before, tile, axis, blend) mixes"""
    p, z = case.params, values["z"]
    if p["engine"] != "diffusers":
        return None
    up, size = p.get("up", 3), p["size"][0]
    step, blend = int(size * (1 - p["overlap"])), int(size * up * p["overlap"])

    def decode(tile):
        y = tile - tile.mean(axis=(2, 3), keepdims=True)
        return np.kron(y, np.ones((1, 1, up, up)))

    rows = []
    for i in range(0, z.shape[2], step):
        rows.append([decode(z[:, :, i : i + size, j : j + size]) for j in range(0, z.shape[3], step)])
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            run(rows, i, j, tile, blend)
    kept = size * up - blend
    joined = [np.concatenate([tile[:, :, :kept, :kept] for tile in row], axis=3) for row in rows]
    return {"picture": np.concatenate(joined, axis=2)}


def _mix(before, tile, blend, axis):
    n = min(before.shape[axis], tile.shape[axis], blend)
    a, b = np.moveaxis(before, axis, 0), np.moveaxis(tile, axis, 0)
    for y in range(n):
        b[y] = a[len(a) - n + y] * (1 - y / n) + b[y] * (y / n)


def _left_alone(rows, i, j, tile, blend):
    if j > 0:
        _mix(rows[i][j - 1], tile, blend, 3)


def _unclamped(rows, i, j, tile, blend):
    for before, axis in ((rows[i - 1][j] if i else None, 2), (rows[i][j - 1] if j else None, 3)):
        if before is None:
            continue
        a, b = np.moveaxis(before, axis, 0), np.moveaxis(tile, axis, 0)
        for y in range(min(blend, len(b))):
            # An index below the first counts from the end, as Python's does.
            if -blend + y >= -len(a):
                b[y] = a[-blend + y] * (1 - y / blend) + b[y] * (y / blend)


def _first_channel(case, values, y):
    picture = np.array(y["picture"])
    picture[:, 1:] = 0
    return {"picture": picture}


def _without_mask(case, values, y):
    if case.params["kind"] != "inpaint":
        return None
    changed = {}
    for name in ("cond", "uncond"):
        extra = np.array(y[name])
        for c in range(extra.shape[1]):
            if np.isin(extra[:, c], (0, 1)).all():
                extra[:, c] = 1
        changed[name] = extra
    return changed


# --- guidance ----------------------------------------------------------------------------------------------------


def _zimage(case, values, y):
    p = case.params
    return (
        {"guided": values["uncond"] + p["scale"] * (values["cond"] - values["uncond"])}
        if p["form"] == "zimage"
        else None
    )


def _unnormalised(case, values, y):
    """The norm is held below the threshold as it is given, not below its share for so many numbers."""
    p = case.params
    if p["form"] != "apg" or p.get("engine") != "sdcpp":
        return None
    cond, uncond = values["cond"], values["uncond"]
    d = cond - uncond
    norm = np.sqrt((d**2).sum(axis=(1, 2, 3), keepdims=True))
    limit, smoothing = p["norm_threshold"], p["smoothing"]
    if smoothing:
        share = limit / (norm + 1e-300)
        factor = np.minimum(1, share) if smoothing <= 0 else share / (1 + share ** (1 / smoothing)) ** smoothing
    else:
        factor = np.minimum(1, limit / norm)
    d = d * factor
    unit = cond / np.sqrt((cond**2).sum(axis=(1, 2, 3), keepdims=True))
    along = (d * unit).sum(axis=(1, 2, 3), keepdims=True) * unit
    return {"guided": cond + (p["scale"] - 1) * (d - along + p.get("eta", 0.25) * along)}


def _by_sigma_again(name):
    from refsd.stages.prediction import _PREDICTIONS

    right = _PREDICTIONS[name]
    return Prediction(name, lambda s: (lambda skip, out, into: (skip, s * out, into))(*right.scalings(s)))


STAGES: dict[str, Injection] = {
    # loaders and adapters
    "conv-16": _answer(
        "weights/*",
        "weight",
        "rows and columns",
        lambda case, v, y: (
            {"weight": y["weight"].reshape(16, 16).T.reshape(y["weight"].shape)}
            if case.params.get("join") == "pointwise"
            else None
        ),
    ),
    "gen-14": _answer("weights/*", "weight", "rows and columns swapped|transposed", _square_transposed),
    "gen-15": _answer(
        "adapter/*", "merged", "rank over alpha", _plain_lora(lambda parts, all: _rank(parts) / _alpha(parts))
    ),
    "lora-03": _answer("adapter/*", "merged", "along the (tokens|inputs)", _deltas_by_token),
    "lora-04": _answer(
        "adapter/*", "merged", "left out", _plain_lora(_right_scale, skip=lambda own, whole: own != whole)
    ),
    "lora-06": _answer(
        "adapter/tag-*",
        "merged",
        "strength (1|left out)",
        _plain_lora(_right_scale, strength=lambda p: 1.0 if p.get("component", "unet") == "unet" else _strength(p)),
    ),
    "lora-09": _answer("adapter/*", "merged", "alpha over the first", _plain_lora(_global_alpha)),
    "lora-11": _answer("adapter/*", "merged", "alpha missing", _plain_lora(lambda parts, all: 1.0)),
    "lora-13": _answer("adapter/*", "merged", "first factor's a", _loha_first_factor),
    "lora-15": _answer("adapter/*", "merged", "scalar", _without_scalar),
    "lora-17": _answer("adapter/*", "merged", "strength on the delta", _dora(0, True)),
    "lora-18": _answer("adapter/*", "merged", "columns", _dora(1, False)),
    "lora-20": _answer("adapter/*", "merged", "rescale along the columns", _rescale_of_columns),
    "lora-23": _answer("adapter/*", "merged", "DoRA left out", _without_dora),
    "q-12": _answer("weights/*", "weight", "column by column|taps first|reverse", _read_reversed),
    "q-16": _answer("weights/*", "weight", "rows and columns swapped", _square_transposed),
    "te-24": _answer("weights/*", "weight", "float16's bytes", _bytes_of_float16),
    # pictures, latents, tiles
    "cn-01": _answer("prediction/*", "control", "ControlNet", lambda case, v, y: {"control": v["x"]}),
    "cn-04": _answer("conditioning/sd1*", "context", "no tokens of the image", lambda case, v, y: None),
    "cn-06": _answer("inpaint/*", "cond", "mask left out", _without_mask),
    "cn-08": _parts("inpaint/*", "kept", "nothing kept", kept=lambda denoised, mask, latent: denoised),
    "gen-13": _parts("pixels/*", "shown", "blue first", colours=lambda pixels: pixels[..., [2, 1, 0]]),
    "vae-01": _parts("latents/*", "latent", "shift left out", scale=_unshifted),
    "vae-02": _parts("latents/flux", "latent", "scale and shift of sd3", scale=_of_sd3),
    "vae-06": _parts("latents/*", "latent", "tiny autoencoder's latents scaled", scale=_tiny_too),
    "vae-08": _parts("latents/*", "latent", "extra channels scaled", scaled=lambda scaled: True),
    "vae-10": _answer("tiles/*", "picture", "left alone", lambda case, v, y: _tiles(case, v, _left_alone)),
    "vae-12": _answer("tiles/*", "picture", "only the first channel", _first_channel),
    "vae-15": _answer("tiles/*", "picture", "small last tile", lambda case, v, y: _tiles(case, v, _unclamped)),
    "vae-21": _parts(
        "inpaint/*", "shown", "black|-1 under", shown=lambda picture, mask: np.where(mask > 0, -1, picture)
    ),
    # prompts
    "te-03": _asked("clip_tokens/*", "ids", "lower case before special", prompt=str.lower),
    "te-04": _parts("clip_tokens/*", "ids", "not lowered", encode=_ids_of_capitals),
    "te-11": _answer("language_tokens/chroma*", "mask", "one token of padding", _one_token_more),
    "te-15": _answer("language_tokens/*", "mask", "one token of padding", _one_token_more),
    "te-17": _parts("language_tokens/*", "ids", "empty texts", whole=_each_empty_text, encode=_encode_with_ends),
    "te-21": _parts(
        "clip_layer/*", "layers", "layer|clip skip", layer=lambda engine: lambda skip, own: own + (skip or 1) - 1
    ),
    "te-22": _parts(
        "clip_layer/*", "layers", "stays for the next", kept=lambda before, now: now if now and now > 0 else before
    ),
    "te-26": _asked("clip_tokens/*", "ids", "substring", prompt=lambda p: p.replace("の", "は")),
    # guidance
    "smp-35": _answer("guidance/*", "guided", "Z-Image", _zimage),
    "smp-36": _parts("prediction/*", "denoised", "times sigma once more", prediction=_by_sigma_again),
    "smp-38": _answer("guidance/*", "guided", "limit as it is given", _unnormalised),
    "smp-42": _answer("prompt_switch/*", "second", "twice the steps", _twice_the_steps),
}


def _without_image(case, values, y):
    if not case.params.get("negative") or "image" not in values:
        return None
    return {"context": y["context"][:, : -values["image"].shape[1]]}


def _shorter(case, inputs, y):
    wrong = _without_image(case, {name: tensor.values() for name, tensor in inputs.items()}, y)
    return {**y, **wrong} if wrong else y


STAGES["cn-04"] = Injection(("stage/conditioning/sd1*",), Bug(answer=_shorter), "context", "no tokens of the image")
