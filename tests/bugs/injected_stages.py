"""Bugs on the way from a prompt and files to a picture: prompts, conditioning, latents, tiles.

Written here a second time: a part of a rule, an answer computed by hand, or another question.
"""

import re

import numpy as np
from injection import Bug, Injection, other_question, wrong_answer, wrong_parts

from refsd.models.vae.latents import LatentScale
from refsd.samplers.parameterization import Prediction

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


def _with_ends(tokenizer, text):
    return [*tokenizer.encode(text), *([tokenizer.ends.eos] if tokenizer.ends.eos is not None and not text else [])]


# --- pictures and latents ----------------------------------------------------------------------------------------


def _unshifted(family, kind):
    from refsd.models.vae.latents import LATENT_SCALES

    scale = None if kind == "tae" else LATENT_SCALES.get(family)
    return scale and LatentScale(scale.factor, 0.0, "")


def _of_sd3(family, kind):
    from refsd.models.vae.latents import LATENT_SCALES

    if kind == "tae":
        return None
    return LatentScale(1.5305, 0.0609, "") if family == "flux" else LATENT_SCALES.get(family)


def _tiny_too(family, kind):
    from refsd.models.vae.latents import LATENT_SCALES

    return LATENT_SCALES.get(family)


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
    # pictures, latents, tiles
    "cn-01": wrong_answer("prediction/*", "control", "ControlNet", lambda case, v, y: {"control": v["x"]}),
    "cn-04": wrong_answer("conditioning/sd1*", "context", "no tokens of the image", lambda case, v, y: None),
    "cn-06": wrong_answer("inpaint/*", "cond", "mask left out", _without_mask),
    "cn-08": wrong_parts("inpaint/*", "kept", "nothing kept", kept=lambda denoised, mask, latent: denoised),
    "gen-13": wrong_parts("pixels/*", "shown", "blue first", colours=lambda pixels: pixels[..., [2, 1, 0]]),
    "vae-01": wrong_parts("latents/*", "latent", "shift left out", scale=_unshifted),
    "vae-02": wrong_parts("latents/flux", "latent", "scale and shift of sd3", scale=_of_sd3),
    "vae-06": wrong_parts("latents/*", "latent", "tiny autoencoder's latents scaled", scale=_tiny_too),
    "vae-08": wrong_parts("latents/*", "latent", "extra channels scaled", scaled=lambda scaled: True),
    "vae-10": wrong_answer("tiles/*", "picture", "left alone", lambda case, v, y: _tiles(case, v, _left_alone)),
    "vae-12": wrong_answer("tiles/*", "picture", "only the first channel", _first_channel),
    "vae-15": wrong_answer("tiles/*", "picture", "small last tile", lambda case, v, y: _tiles(case, v, _unclamped)),
    "vae-21": wrong_parts(
        "inpaint/*", "shown", "black|-1 under", shown=lambda picture, mask: np.where(mask > 0, -1, picture)
    ),
    # prompts
    "te-03": other_question("clip_tokens/*", "ids", "lower case before special", prompt=str.lower),
    "te-04": wrong_parts("clip_tokens/*", "ids", "not lowered", encode=_ids_of_capitals),
    "te-11": wrong_answer("language_tokens/chroma*", "mask", "one token of padding", _one_token_more),
    "te-15": wrong_answer("language_tokens/*", "mask", "one token of padding", _one_token_more),
    "te-17": wrong_parts("language_tokens/*", "ids", "empty texts", whole=_each_empty_text, encode=_with_ends),
    "te-21": wrong_parts(
        "clip_layer/*",
        "layers",
        "clip skip counted from",
        layer=lambda engine: lambda skip, own: own + (skip or 1) - 1,
    ),
    "te-22": wrong_parts(
        "clip_layer/*", "layers", "stays for the next", kept=lambda before, now: now if now and now > 0 else before
    ),
    "te-26": other_question("clip_tokens/*", "ids", "substring", prompt=lambda p: p.replace("の", "は")),
    # guidance
    "smp-35": wrong_answer("guidance/*", "guided", "Z-Image", _zimage),
    "smp-36": wrong_parts("prediction/*", "denoised", "times sigma once more", prediction=_by_sigma_again),
    "smp-38": wrong_answer("guidance/*", "guided", "limit as it is given", _unnormalised),
    "smp-42": wrong_answer("prompt_switch/*", "second", "twice the steps", _twice_the_steps),
}


def _without_image(case, values, y):
    if not case.params.get("negative") or "image" not in values:
        return None
    return {"context": y["context"][:, : -values["image"].shape[1]]}


def _shorter(case, inputs, y):
    wrong = _without_image(case, {name: tensor.values() for name, tensor in inputs.items()}, y)
    return {**y, **wrong} if wrong else y


STAGES["cn-04"] = Injection(("stage/conditioning/sd1*",), Bug(answer=_shorter), "context", "no tokens of the image")
