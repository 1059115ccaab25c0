"""Held-out bugs of prompts, conditioning, latents, masks, adapters and loaders, written out by hand."""

import re

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of, strength_of
from injection import Bug, Injection, wrong_answer, wrong_parts

# --- adapters ----------------------------------------------------------------------------------------------------


def _only(values):
    return next(iter(modules_of(values).values()))


def _turned(weight, blocks, strength, rescale):
    """The rows turned by the rotations of the blocks, LyCORIS's strength."""
    n, b, _ = blocks.shape
    R = np.matmul(np.eye(b) + blocks, np.linalg.inv(np.eye(b) - blocks))
    R = strength * R + (1 - strength) * np.eye(b)
    y = np.einsum("nji,nj...->ni...", R, weight.reshape(n, b, *weight.shape[1:])).reshape(weight.shape)
    return y * (1.0 if rescale is None else rescale.reshape(-1, *(1,) * (weight.ndim - 1)))


def _oft(change):
    """change: weight, blocks, alpha or None, strength, rescale -> merged, or None"""

    def answer(case, values, y):
        parts = _only(values)
        if "oft" not in parts or parts["oft"].ndim != 3:
            return None
        merged = change(
            values["weight"],
            parts["oft"],
            parts.get("alpha"),
            case.params.get("strength", 1.0),
            parts.get("rescale"),
        )
        return None if merged is None else {"merged": merged}

    return answer


def _skew(blocks):
    return blocks - blocks.swapaxes(1, 2)


def _limited(q, limit):
    norm = np.sqrt((q**2).sum()) + 1e-8
    return q * min(1.0, float(limit) / norm)


def _alpha_scales(weight, blocks, alpha, strength, rescale):
    if alpha is None:
        return None
    return _turned(weight, _skew(blocks), strength * float(alpha) / blocks.shape[-1], rescale)


def _mean_of_rows(case, values, y):
    parts = _only(values)
    if "magnitude" not in parts or case.params.get("rule", "trainer") != "trainer":
        return None
    weight, m = values["weight"], case.params.get("strength", 1.0)
    merged = weight + alpha_of(parts) / len(parts["down"]) * product_of(parts)
    factor = parts["magnitude"].reshape(-1, 1) / merged.mean(axis=1, keepdims=True)
    return {"merged": merged * (1 + m * (factor - 1))}


def _scaled_afterwards(case, values, y):
    parts = _only(values)
    if "magnitude" not in parts or "alpha" not in parts:
        return None
    weight, m = values["weight"], case.params.get("strength", 1.0)
    merged = weight + product_of(parts)
    factor = parts["magnitude"].reshape(-1, 1) / np.sqrt((merged**2).sum(axis=1, keepdims=True))
    share = m * alpha_of(parts) / len(parts["down"])
    return {"merged": weight + share * (merged * factor - weight)}


def _plain(factor):
    def answer(case, values, y):
        modules = modules_of(values)
        if len(modules) > 1 or "down" not in _only(values) or "magnitude" in _only(values):
            return None
        parts = _only(values)
        change = factor(case, parts)
        if change is None:
            return None
        return {"merged": values["weight"] + change * product_of(parts).reshape(values["weight"].shape)}

    return answer


def _root_of_rank(case, parts):
    return strength_of(case.params) * alpha_of(parts) / len(parts["down"]) ** 0.5


def _of_the_unet(case, parts):
    if not case.params.get("tag"):
        return None
    return strength_of({**case.params, "component": "unet"}) * alpha_of(parts) / len(parts["down"])


def _rank_one_lost(case, parts):
    return 0.0 if len(parts["down"]) == 1 else None


def _core(change):
    def answer(case, values, y):
        parts = _only(values)
        if "mid" not in parts:
            return None
        scale = alpha_of(parts) / len(parts["down"])
        return {"merged": values["weight"] + scale * product_of({**parts, "mid": change(parts["mid"])})}

    return answer


def _ones(mid):
    return np.einsum("kl,rs->klrs", np.eye(*mid.shape[:2]), np.ones(mid.shape[2:]))


# --- prompts -----------------------------------------------------------------------------------------------------


def _padded_with_end(case, values, y):
    told = case.params["vocabulary"]
    end = told["ends"][1]
    if case.params["encoder"] != "t5" or end is None:
        return None
    ids = np.array(y["ids"])
    ids[ids == told["tokens"].index(told["ends"][2])] = told["tokens"].index(end)
    return {"ids": ids}


def _half_as_long(case, values, y):
    if case.params["encoder"] != "t5" or not case.params["length"]:
        return None
    n = case.params["length"] // 2
    ids = np.array(y["ids"])[:, :n]
    end = case.params["vocabulary"]["ends"][1]
    whole = (np.array(y["ids"])[:, n:] != ids[0, 0]).any() and ids.shape[0] == 1
    if end is not None and whole and np.asarray(y["mask"])[0, n - 1]:
        ids[:, -1] = case.params["vocabulary"]["tokens"].index(end)
    return {"ids": ids, "mask": np.array(y["mask"])[:, :n], "weights": np.array(y["weights"])[:, :n]}


def _end_after_each(tokenizer, text):
    return [*tokenizer.encode(text), *([tokenizer.ends.eos] if tokenizer.ends.eos is not None and text else [])]


def _lines_apart(tokenizer, text):
    return [i for piece in re.split(r"(\n+)", text) if piece for i in tokenizer.encode(piece)]


# --- conditioning ------------------------------------------------------------------------------------------------


def _no_padding(case, values, y):
    context = np.array(y["context"])
    context[:, -4:] = 0
    return {"context": context}


def _pooled(values):
    return (values[name] for name in ("clip_pooled", "clip_g_pooled") if name in values)


def _prompts_interleaved(case, values, y):
    if "y" not in y:
        return None
    wrong = np.array(y["y"])
    P = wrong.shape[1] if case.params["variant"] == "sd3" else list(_pooled(values))[-1].shape[1]
    wrong[:, :P] = wrong[::-1, :P]
    return {"y": wrong}


def _clip_l_of_zeros(case, values, y):
    wrong = np.array(y["y"])
    wrong[:, : values["clip_pooled"].shape[1]] = 0
    return {"y": wrong}


def _not_zeroed(case, values, y):
    if not case.params.get("empty") or "clip_hidden" not in values:
        return None
    context = np.concatenate([values["clip_hidden"], values["clip_g_hidden"]], axis=2)
    wrong = np.array(y["y"])
    wrong[:, : values["clip_g_pooled"].shape[1]] = values["clip_g_pooled"]
    return {"context": context, "y": wrong}


def _tokens_of_all(case, inputs, y):
    image = inputs["image_of_zeros" if case.params.get("negative") else "image"].values()
    text = y["context"][:, : -image.shape[1]]
    joined = np.broadcast_to(image.reshape(1, -1, image.shape[2]), (len(text), image[..., 0].size, image.shape[2]))
    return {**y, "context": np.concatenate([text, joined.astype(text.dtype)], axis=1)}


# --- pictures and latents ----------------------------------------------------------------------------------------


def _first_item(*names):
    def answer(case, values, y):
        return {name: np.broadcast_to(y[name][:1], y[name].shape) for name in names if name in y}

    return answer


def _known_divided(case, values, y):
    if "kept" not in y:
        return None
    where, latent = np.asarray(y["latent_mask"]), np.asarray(y["kept"], np.float64)
    return {"kept": np.where(where > 0, latent, latent * 1.74)}


def _unscaled_twice(case, values, y):
    from refsd.models.vae.latents import LATENT_SCALES

    if case.params.get("kind") == "tae" or "channel_mean" in values:
        return None
    scale = LATENT_SCALES[case.params["family"]]
    once = values["latent"] / scale.factor + scale.shift
    return {"shown_latent": once / scale.factor + scale.shift}


HELD_OUT_STAGES: dict[str, HeldOut] = {
    "us-inp-04": HeldOut(
        "pipeline",
        "lllyasviel/stable-diffusion-webui-forge@d32b5e54",
        wrong_answer("inpaint/*", "kept", "latent.*(times|scaled|divided|multiplied)|1\\.74", _known_divided),
    ),
    "us-vae-01": HeldOut(
        "vae",
        "AUTOMATIC1111/stable-diffusion-webui@5e80d9ee",
        wrong_answer(
            "latents/*",
            "shown_picture",
            "0 to 1|0\\.\\.1",
            lambda case, v, y: (
                {"shown_picture": v["picture"] / 2 + 0.5} if case.params.get("kind") != "tae" else None
            ),
        ),
    ),
    "us-vae-02": HeldOut(
        "vae",
        "kohya-ss/sd-scripts@c0c36a4e",
        wrong_answer("latents/*", "shown_latent", "twice", _unscaled_twice),
    ),
    "us-lora-01": HeldOut(
        "loader",
        "AUTOMATIC1111/stable-diffusion-webui@3b8515d2",
        wrong_answer(
            "adapter/*",
            "merged",
            "strength (squared|twice)",
            _oft(lambda w, blocks, alpha, m, r: _turned(w, _skew(blocks), m * m, r)),
        ),
    ),
    "us-lora-02": HeldOut(
        "loader",
        "AUTOMATIC1111/stable-diffusion-webui@d6d0b22e",
        wrong_answer("adapter/*", "merged", "alpha", _oft(_alpha_scales)),
    ),
    "us-lora-03": HeldOut(
        "loader",
        "AUTOMATIC1111/stable-diffusion-webui@d6d0b22e",
        wrong_answer(
            "adapter/*",
            "merged",
            "skew|transposed? ",
            _oft(lambda w, blocks, alpha, m, r: _turned(w, blocks, m, r)),
        ),
    ),
    "us-lora-05": HeldOut(
        "loader",
        "KohakuBlueleaf/LyCORIS@e73f905",
        wrong_answer(
            "adapter/*",
            "merged",
            "constraint|alpha",
            _oft(lambda w, b, alpha, m, r: None if alpha is None else _turned(w, _limited(_skew(b), alpha), m, r)),
        ),
    ),
    "us-lora-06": HeldOut(
        "loader",
        "KohakuBlueleaf/LyCORIS@7f6d4d0",
        wrong_answer("adapter/*", "merged", "core transposed", _core(lambda mid: mid.swapaxes(0, 1))),
    ),
    "us-lora-07": HeldOut(
        "loader",
        "KohakuBlueleaf/LyCORIS@d595072",
        wrong_answer("adapter/*", "merged", "root of the rank", _plain(_root_of_rank)),
    ),
    "us-lora-08": HeldOut(
        "loader", "KohakuBlueleaf/LyCORIS@b42a078", wrong_answer("adapter/*", "merged", "mean", _mean_of_rows)
    ),
    "us-lora-09": HeldOut(
        "loader", "vladmandic/sdnext@387a349df", wrong_answer("adapter/*", "merged", "alpha", _scaled_afterwards)
    ),
    "us-lora-10": HeldOut(
        "loader",
        "vladmandic/sdnext@2605764f4",
        wrong_answer("adapter/*", "merged", "UNet's strength", _plain(_of_the_unet)),
    ),
    "us-lora-11": HeldOut(
        "loader",
        "leejet/stable-diffusion.cpp@e500d95a (#575)",
        wrong_answer("adapter/*", "merged", "left out|dropped|rank 1", _plain(_rank_one_lost)),
    ),
    "us-lora-12": HeldOut(
        "loader",
        "leejet/stable-diffusion.cpp@39591092 (#1239)",
        wrong_answer("adapter/*", "merged", "core left out", _core(_ones)),
    ),
    "us-te-01": HeldOut(
        "conditioning",
        "kohya-ss/sd-scripts@2d8fa338",
        wrong_answer("conditioning/flux", "context", "padding|zeros?", _no_padding),
    ),
    "us-te-02": HeldOut(
        "tokens",
        "kohya-ss/sd-scripts@2d8fa338",
        wrong_answer("language_tokens/*", "ids", "cut|truncated|12|half|length|of 24", _half_as_long),
    ),
    "us-te-03": HeldOut(
        "conditioning",
        "huggingface/diffusers@05b38c3c0d (#9280)",
        wrong_answer("conditioning/*", "y", "items?\\b|batch|order", _prompts_interleaved),
    ),
    "us-te-05": HeldOut(
        "conditioning",
        "leejet/stable-diffusion.cpp@9b1d90bc (#397)",
        wrong_answer("conditioning/sd3", "y", "clip.*(zero|left out)|zeros", _clip_l_of_zeros),
    ),
    "us-te-06": HeldOut(
        "tokens",
        "leejet/stable-diffusion.cpp@14206fd4 (#383)",
        wrong_parts(
            "clip_tokens/*",
            "ids",
            "ASCII",
            encode=lambda encode: lambda text: encode(text.encode("ascii", "ignore").decode()),
        ),
    ),
    "us-te-07": HeldOut(
        "tokens",
        "leejet/stable-diffusion.cpp@d7ecbe1d (#1501)",
        wrong_parts("language_tokens/*", "ids", "EOS after each|end token", encode=_end_after_each),
    ),
    "us-te-08": HeldOut(
        "tokens",
        "leejet/stable-diffusion.cpp@c9cd4970 (#1288)",
        wrong_parts("language_tokens/*", "ids", "lines?\\b|white|split", encode=_lines_apart),
    ),
    "us-te-11": HeldOut(
        "conditioning",
        "AUTOMATIC1111/stable-diffusion-webui@594c8e7b",
        wrong_answer("conditioning/sdxl-*", "context", "empty prompt is encoded|as the other", _not_zeroed),
    ),
    "us-te-13": HeldOut(
        "tokens",
        "lllyasviel/stable-diffusion-webui-forge@463cff0d",
        wrong_answer("language_tokens/*", "ids", "padding with EOS|pad", _padded_with_end),
    ),
    "us-ip-01": HeldOut(
        "pipeline",
        "huggingface/diffusers#9813",
        Injection(
            ("stage/conditioning/sd1*",), Bug(answer=_tokens_of_all), "context", "all items|every item|items"
        ),
    ),
}
