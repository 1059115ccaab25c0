"""Held-out bugs of batches, masks, seeds, requests, learned embeddings and statistics by channel.

Those of stages that came later than the bugs (stage/masked_step, control, requests, variation, slerp, calls,
step_noise, textual_inversion): written out by hand from the commits that mended them.
"""

import numpy as np
from held_out import HeldOut
from injection import wrong_answer

from refsd.samplers.noise import RNGS

# --- masks and ControlNets ----------------------------------------------------------------------------------------


def _step(case, values, mask, given, around):
    """A masked step by hand. mask: of each entry; given: picture of each; around: the mask that mixes at the end"""
    p = case.params
    s, to = p["sigma"], p["sigma_next"]
    x, denoised = values["x"], values["denoised"]
    if p["engine"] != "diffusers":
        denoised = denoised * mask + given * (1 - mask)
    left = x + (x - denoised) / s * (to - s)
    if p["engine"] == "diffusers":
        kept = 1 - to if p.get("space") == "flow" else 1.0
        left = left * around + (kept * given + to * values["noise"]) * (1 - around)
    return {"latent_mask": mask, "denoised": denoised, "left": left}


def _grey_passed_on(case, values, y):
    """69c73789: the mask is not rounded; the largest of a square's greys."""
    if case.params["engine"] != "sdcpp":
        return None
    N, C, H, W = values["mask"].shape
    mask = values["mask"].reshape(N, C, H // 4, 4, W // 4, 4).max(axis=(3, 5))
    mask = mask[np.arange(len(values["x"])) % N]
    return _step(case, values, mask, values["latent"][np.arange(len(values["x"])) % len(values["latent"])], mask)


def _first_mixed(case, values, y):
    """6886e28fd8: image_latents[:1] and mask[:1] behind the step."""
    if case.params["engine"] != "diffusers":
        return None
    mask = np.asarray(y["latent_mask"], np.float64)
    return {"left": _step(case, values, mask, values["latent"][:1], mask[:1])["left"]}


def _texts_of_both(case, values, y):
    """934d439a42: in guess mode the ControlNet runs on the prompt's half, and is told both halves' texts."""
    if case.params["mode"] != "guess":
        return None
    return {"text": np.repeat(values["text"], case.params["each"], axis=0)}


def _first_hint(case, values, y):
    """1040dfd9cc: of a list of pictures the first is taken for every prompt."""
    return {"hint": np.broadcast_to(y["hint"][:1], y["hint"].shape)} if len(values["hint"]) > 1 else None


# --- latents ------------------------------------------------------------------------------------------------------


def _decoded_by_factor_alone(case, values, y):
    return {"shown_latent": values["latent"] / 0.13025} if case.params["family"] == "sdxl" else None


def _encoded_by_factor_alone(case, values, y):
    if case.params["family"] != "sdxl" or "channel_mean" not in values:
        return None
    mean, logvar = np.split(values["moments"], 2, axis=1)
    return {"latent": (mean + np.exp(np.clip(logvar, -30, 20) / 2) * values["noise"]) * 0.13025}


def _joined_in_the_loop(case, values, y):
    """e7d7e699e: torch.cat of a batch that is one already: of its items, along their first axis."""
    return {"latent": np.concatenate([*np.asarray(y["latent"])])}


# --- files --------------------------------------------------------------------------------------------------------


def _one_scale(case, values, y):
    """806d535e: the scales of blocks are overwritten by the tensor's."""
    scale = values.get("scale")
    if scale is None or scale.size == 1:
        return None
    return {"weight": values["data"].reshape(case.params["layer"]) * scale.max()}


def _butterfly_of_inputs(case, values, y):
    """85ab749: the blocks turn the weight's last axis."""
    blocks = values.get("lora_unet_layer.oft_blocks")
    weight = values["weight"]
    if blocks is None or blocks.ndim != 4 or weight.shape[0] != weight.shape[1]:
        return None
    m, n, b, _ = blocks.shape
    q = blocks - blocks.swapaxes(-1, -2)
    eye = np.eye(b)
    turns = (eye + q) @ np.linalg.inv(eye - q)
    turns = case.params["strength"] * turns + (1 - case.params["strength"]) * eye
    inner = weight
    for i in range(m):
        half = 2**i * b // 2
        inner = inner.reshape(len(weight), -1, 2, half).swapaxes(-1, -2).reshape(len(weight), n, b)
        inner = np.einsum("bij,obj->obi", turns[i], inner)
        inner = inner.reshape(len(weight), -1, half, 2).swapaxes(-1, -2).reshape(weight.shape)
    return {"merged": inner}


def _both_factors_swapped(case, values, y):
    """2d0110f818: halves are exchanged in down as well as in up."""
    if "modulation.lora_up.weight" not in values:
        return None
    down, up = (values[f"modulation.lora_{part}.weight"] for part in ("down", "up"))
    up, down = (np.concatenate(np.split(w, 2)[::-1]) for w in (up, down))
    return {"merged": values["weight"] + float(values["modulation.alpha"]) / len(down) * up @ down}


def _adapter_stays(case, values, y):
    """810ef0cf: a request without adapters does not reset the last one's."""
    wrong, kept = {}, None
    for i, request in enumerate(case.params["requests"], 1):
        if request["adapters"]:
            kept = y[f"weight_{i}"]
        elif kept is not None:
            wrong[f"weight_{i}"] = kept
    return wrong or None


# --- seeds --------------------------------------------------------------------------------------------------------


def _index_goes_on(case, values, y):
    """2430fc20: the index of the steps' noise is not reset before the second batch."""
    wrong, earlier = {}, 0
    for i, request in enumerate(case.params["requests"], 1):
        stream = RNGS[case.params.get("rng", "cuda")](request["seed"])
        shape = (1, 4, *(side // 8 for side in request["size"]))
        draws = [stream.randn(shape) for _ in range(earlier + 2)]
        wrong[f"step_noise_{i}"] = draws[-1]
        earlier += request["steps"]
    return wrong


def _exchanged_when_parallel(case, values, y):
    """ace616d28: the nearly parallel shortcut."""
    if case.params["engine"] != "sdnext" or np.abs(values["step"]).max() > 0.1:
        return None
    low, high, share = values["low"], values["low"] + values["step"], case.params["share"]
    return {"mixed": low * share + high * (1 - share)}


def _no_generator_for_0(case, values, y):
    """26a58b46f: seed 0 is dropped, its picture is drawn without a seed."""
    if case.params.get("seed", 42) != 0:
        return None
    rng = np.random.default_rng(8)
    noise, steps = np.array(y["noise"]), np.array(y["step_noise"])
    noise[0], steps[:, 0] = rng.standard_normal(noise[0].shape), rng.standard_normal(steps[:, 0].shape)
    s = case.params["sigma"]
    kept = {"ve": 1.0, "flow": 1 - s}[case.params["space"]]
    return {"noise": noise, "step_noise": steps, "start": kept * values["latent"] + s * noise}


def _of_the_options(case, values, y):
    """f18a0321: s_noise of the options, 1, whatever the request's."""
    return {"deviation": np.asarray(y["deviation"], np.float64) / case.params.get("s_noise", 1.0)}


def _steps_for_calls(case, values, y):
    """ca783a0f1f: timesteps[t_start:] of a scheduler that lists two calls a step."""
    p = case.params
    if p["solver"] == "dpm++2m" or p["engine"] != "diffusers":
        return None
    from refsd.samplers.levels import SD_LEVELS
    from refsd.samplers.schedules import SCHEDULES

    sigmas = SCHEDULES[p["spacing"]](p["steps"], SD_LEVELS)[:-1]
    every = [sigmas[0], *(sigma for sigma in sigmas[1:] for _ in range(2))]
    made = np.array(every[p["steps"] - int(p["steps"] * p["strength"]) :])
    t = np.array([SD_LEVELS.to_t(float(sigma)) for sigma in made])
    return {"sigmas": made, "timesteps": t, "begin": made[:1]}


# --- learned embeddings -------------------------------------------------------------------------------------------


def _a_token_early(case, values, y):
    """90401d96: BOS is not counted."""
    if case.params["engine"] != "a1111":
        return None
    wrong = {}
    for encoder in case.params["encoders"]:
        rows = np.array(y[encoder])
        rows[:, :-1] = y[encoder][:, 1:]
        wrong[encoder] = rows
    return wrong


def _skips_vectors(case, values, y):
    """88ec0cf5: behind a name so many tokens are skipped as it has vectors."""
    if case.params["engine"] != "a1111" or "(" in case.params["prompt"]:
        return None
    from refsd.stages.clip_tokens import _vocabulary

    encode = _vocabulary().encode
    files: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in values.items():
        file, _, inner = name.partition(":")
        encoder = {"clip_g": "clip_g"}.get(inner, "clip")
        files.setdefault(file.rpartition(".")[0], {})[encoder] = tensor
    names = sorted(((encode(name), own) for name, own in files.items()), key=lambda pair: -len(pair[0]))
    tokens, ids, vectors, at = encode(case.params["prompt"]), [], [], 0
    while at < len(tokens):
        own = next((pair for pair in names if tokens[at : at + len(pair[0])] == pair[0]), None)
        count = len(own[1]["clip"]) if own else 1
        ids += [-1] * count if own else [tokens[at]]
        vectors += [{e: own[1][e][k] for e in own[1]} if own else None for k in range(count)]
        at += count
    wrong = {"ids": np.full_like(y["ids"], 49407)}
    wrong["ids"][0, 0] = 49406
    wrong["ids"][0, 1 : 1 + len(ids)] = ids
    for encoder, width in case.params["encoders"].items():
        rows = np.zeros((1, 77, width))
        for k, vector in enumerate(vectors):
            if vector is not None:
                rows[0, 1 + k] = vector[encoder]
        wrong[encoder] = rows
    return wrong


def _runs_together(case, values, y):
    """0d196f9f45: the replacement "zorbzorb_1" is not split, and so is a word like any other."""
    if case.params["engine"] != "diffusers":
        return None
    from refsd.stages.clip_tokens import _vocabulary

    encode = _vocabulary().encode
    tokens, text = [], case.params["prompt"]
    before, _, rest = text.partition("<cat-toy>")
    between, _, behind = rest.partition("zorb")
    toy = values["learned.bin:<cat-toy>"]
    tokens += [*encode(before), toy, *encode(between), *encode("zorbzorb_1"), *encode(behind)]
    ids, rows = np.full_like(y["ids"], 49407), np.zeros_like(y["clip"])
    ids[0, 0] = 49406
    for k, token in enumerate(tokens, 1):
        ids[0, k] = -1 if isinstance(token, np.ndarray) else token
        rows[0, k] = token if isinstance(token, np.ndarray) else 0
    return {"ids": ids, "clip": rows}


HELD_OUT_BATCHES: dict[str, HeldOut] = {
    "us-inp-05": HeldOut(
        "pipeline",
        "huggingface/diffusers@6886e28fd8 (#5033)",
        wrong_answer("masked_step/diffusers*", "left", "first", _first_mixed),
    ),
    "us-inp-06": HeldOut(
        "pipeline",
        "leejet/stable-diffusion.cpp@69c73789 (#589)",
        wrong_answer("masked_step/*", "latent_mask", "grey", _grey_passed_on),
    ),
    "us-cn-01": HeldOut(
        "pipeline",
        "huggingface/diffusers@1040dfd9cc (#6334)",
        wrong_answer("control/*", "hint", "first", _first_hint),
    ),
    "us-cn-02": HeldOut(
        "pipeline",
        "huggingface/diffusers@934d439a42 (#4799)",
        wrong_answer("control/*", "text", "both halves", _texts_of_both),
    ),
    "us-vae-03": HeldOut(
        "vae",
        "huggingface/diffusers@d71ecad8cd (#7111)",
        wrong_answer("latents/sdxl-by*", "shown_latent", "statistics|means", _decoded_by_factor_alone),
    ),
    "uf-04": HeldOut(
        "vae",
        "huggingface/diffusers@33c5d125cb (#7627)",
        wrong_answer("latents/sdxl-by*", "latent", "statistics|means", _encoded_by_factor_alone),
    ),
    "uf-09": HeldOut(
        "pipeline",
        "vladmandic/sdnext@e7d7e699e",
        wrong_answer("latents/*", "latent", "item and channel joined", _joined_in_the_loop),
    ),
    # Crashes: nothing is answered that could be judged.
    "uf-10": HeldOut("pipeline", "AUTOMATIC1111/stable-diffusion-webui@6fc12428", None),
    "us-q-01": HeldOut(
        "loader",
        "kohya-ss/sd-scripts@806d535e",
        wrong_answer("weights/fp8-scaled-*", "weight", "largest scale for all", _one_scale),
    ),
    "us-lora-04": HeldOut(
        "loader",
        "KohakuBlueleaf/LyCORIS@85ab749",
        wrong_answer("adapter/*", "merged", "of the inputs", _butterfly_of_inputs),
    ),
    "us-lora-13": HeldOut(
        "loader",
        "leejet/stable-diffusion.cpp@810ef0cf (#1307)",
        wrong_answer("requests/*", "weight_2", "stay", _adapter_stays),
    ),
    "us-lora-14": HeldOut(
        "loader",
        "huggingface/diffusers@2d0110f818 (#14001)",
        wrong_answer("adapter/*", "merged", "down.*halves", _both_factors_swapped),
    ),
    "us-te-09": HeldOut(
        "tokens",
        "AUTOMATIC1111/stable-diffusion-webui@90401d96",
        wrong_answer("textual_inversion/*", "clip", "token early|each the next", _a_token_early),
    ),
    "us-te-10": HeldOut(
        "tokens",
        "AUTOMATIC1111/stable-diffusion-webui@88ec0cf5",
        wrong_answer("textual_inversion/*", "ids", "as many tokens are skipped", _skips_vectors),
    ),
    "us-te-14": HeldOut(
        "tokens",
        "huggingface/diffusers@0d196f9f45 (#3188)",
        wrong_answer("textual_inversion/*", "ids", "run together|are text", _runs_together),
    ),
    "us-smp-12": HeldOut(
        "noise",
        "vladmandic/sdnext@ace616d28",
        wrong_answer("slerp/*", "mixed", "shares exchanged", _exchanged_when_parallel),
    ),
    "us-smp-14": HeldOut(
        "pipeline",
        "huggingface/diffusers@ca783a0f1f (#3128)",
        wrong_answer("calls/*", "sigmas", "counted in calls", _steps_for_calls),
    ),
    "us-smp-16": HeldOut(
        "sampler",
        "AUTOMATIC1111/stable-diffusion-webui@f18a0321",
        wrong_answer("step_noise/*", "deviation", "s_noise", _of_the_options),
    ),
    "us-rng-02": HeldOut(
        "noise",
        "AUTOMATIC1111/stable-diffusion-webui@2430fc20",
        wrong_answer("requests/*", "step_noise", "counted on", _index_goes_on),
    ),
    "us-rng-03": HeldOut(
        "noise",
        "vladmandic/sdnext@26a58b46f",
        wrong_answer("noising/*", "noise", "without one|seed 0", _no_generator_for_0),
    ),
}
