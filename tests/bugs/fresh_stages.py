"""Fresh held-out bugs from prompts and files to pictures: drawn from public trackers on 2026-11-23, before a look
at the judge."""

import re
import unicodedata

import numpy as np
from held_out import HeldOut
from injected_files import modules_of
from injected_stages import _mix, _tiles
from injection import Injection, other_question, wrong_answer, wrong_parts

from refsd.conventions.sampling import fewer_rounded_up
from refsd.samplers.levels import SD_LEVELS
from refsd.stages.noising import RULE as NOISING

# --- guidance, start, ControlNet ---------------------------------------------------------------------------------


def _from_cond(case, values, y):
    if case.params["form"] != "cfg":
        return None
    return {"guided": values["cond"] + case.params["scale"] * (values["cond"] - values["uncond"])}


def _one_level_up(sigmas, first):
    """The picture is noised to the trained timestep behind the one where sampling begins."""
    return float(SD_LEVELS.to_sigma(min(SD_LEVELS.to_t(float(sigmas[first])) + 1, 999)))


def _not_the_first(case, values, y):
    added = np.array(y["added"])
    added[:, 0] = 0
    return {"added": added}


def _text_of_uncond(case, values, y):
    if case.params["mode"] != "guess":
        return None
    return {"text": np.repeat(values["text"][: len(values["text"]) // 2], case.params["each"], axis=0)}


def _one_generator(params, seeds):
    return NOISING.streams({**params, "one_stream": True}, seeds)


# --- pictures and latents ----------------------------------------------------------------------------------------


def _whole_picture(case, values, y):
    """The masked picture's channels are those of the picture itself."""
    if case.params["kind"] != "inpaint":
        return None
    shown = 2 * values["picture"] - 1
    N, C, H, W = shown.shape
    latent = shown.reshape(N, C, H // 4, 4, W // 4, 4).mean(axis=(3, 5)) * 0.25
    changed = {"shown": shown}
    for name in ("cond", "uncond"):
        extra = np.array(y[name])
        if np.abs(extra).sum():
            first = 0 if not np.isin(extra[:, 0], (0, 1)).all() else 1
            extra[:, first : first + C] = latent
        changed[name] = extra
    return changed


def _mean_for_std(case, values, y):
    if "channel_mean" not in values or case.params["family"] != "sdxl":
        return None
    mean, std = (values[name][None, :, None, None] for name in ("channel_mean", "channel_spread"))
    return {"shown_latent": values["latent"] * mean / 0.13025 + std}


def _raw_neighbours():
    """A tile is blended with its neighbours as they were decoded, not as they were blended."""
    raw = []

    def run(rows, i, j, tile, blend):
        if (i, j) == (0, 0):
            raw[:] = [[one.copy() for one in row] for row in rows]
        if i:
            _mix(raw[i - 1][j], tile, blend, 2)
        if j:
            _mix(raw[i][j - 1], tile, blend, 3)

    return lambda case, values, y: _tiles(case, values, run)


def _last_columns_skipped(rows, i, j, tile, blend):
    if j == len(rows[i]) - 1 > 0:
        tile[:] = 0
        return
    if i:
        _mix(rows[i - 1][j], tile, blend, 2)
    if j:
        _mix(rows[i][j - 1], tile, blend, 3)


def _unit_range(case, values, y):
    if case.params["range"] != "-1..1":
        return None
    return {"bytes": np.round(np.clip(values["answer"], 0, 1) * 255).transpose(0, 2, 3, 1)}


# --- prompts -----------------------------------------------------------------------------------------------------

_WORDS = re.compile(
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+", re.IGNORECASE
)


def _no_end_of_word(encode):
    """Words end by the blank between them, as GPT-2's; single letters show it: "a", not "a</w>"."""

    def ids(text):
        found = []
        for i, word in enumerate(_WORDS.findall(text)):
            own = encode(word)
            own = [*own[:-1], own[-1] - 256] if own and 256 <= own[-1] < 512 else own
            found += [*([220] if i else []), *own]
        return found

    return ids


def _runs_of_digits(encode):
    """Digits side by side are one word, whose end the last of them carries."""

    def ids(text):
        found = []
        for piece in re.split(r"(\d{2,})", text):
            own = encode(piece)
            found += [one - 256 for one in own[:-1]] + own[-1:] if piece.isdigit() and len(piece) > 1 else own
        return found

    return ids


def _lines_kept(encode):
    """A line's end is a token: byte 10, which has its character behind the printable ones."""
    return lambda text: [
        one
        for piece in re.split(r"([\r\n])", text)
        for one in ([256 + 188 + ord(piece)] if piece in "\r\n" and piece else encode(piece))
    ]


def _first_bracket_alone(case, values, y):
    weights = np.array(y["weights"], np.float64)
    flat, seen = weights.reshape(-1), False
    for i in range(1, flat.size):
        seen |= bool(flat[i - 1] != 1 and flat[i] != flat[i - 1])
        flat[i] = 1 if seen else flat[i]
    return {"weights": weights}


def _weights_of_the_first_chunk(case, values, y):
    weights = np.array(y["weights"])
    return {"weights": np.broadcast_to(weights[:1], weights.shape)} if len(weights) > 1 else None


def _without_accents(prompt):
    return "".join(c for c in unicodedata.normalize("NFD", prompt) if not unicodedata.combining(c))


def _padding_hidden(case, values, y):
    """A mask of the tokens where the model was trained without one."""
    told = case.params["vocabulary"]
    pad = told["tokens"].index(told["ends"][2])
    return {"mask": (np.asarray(y["ids"]) != pad).astype(np.int64)}


# --- files -------------------------------------------------------------------------------------------------------


def _unscaled(case, values, y):
    """Joined parts, whose data are several tensors, are left as they are."""
    whole = "scale" in values and values["data"].size == y["weight"].size
    return {"weight": values["data"].reshape(y["weight"].shape)} if whole else None


def _bytes_swapped(case, values, y):
    """Numbers of two bytes whose high byte is read first."""
    if case.name.rsplit("/")[-1] not in ("linear-f16", "conv-f16"):
        return None
    return {"weight": np.asarray(y["weight"]).astype(np.float16).byteswap()}


def _alpha_of_whole_factors(case, values, y):
    """alpha over a rank of which the file tells nothing: both factors are stored whole."""
    parts = next(iter(modules_of(values).values()))
    if not {"lokr_w1", "lokr_w2", "alpha"} <= parts.keys():
        return None
    return {"merged": values["weight"] + (y["merged"] - values["weight"]) * float(parts["alpha"]) / 4}


def _no_convolutions(case, values, y):
    return {"merged": values["weight"]} if values["weight"].ndim == 4 else None


def _second_encoder_empty(case, values, y):
    return {"clip_g": np.zeros_like(y["clip_g"])} if "clip_g" in y else None


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "f-cfg-01": (
        "pipeline",
        "threestudio-project/threestudio#530",
        wrong_answer(
            "guidance/cfg*",
            "guided",
            r"Z-Image|cond \+|scale \+ 1|scale (is|of) 8\.5|from cond|scale one too high",
            _from_cond,
        ),
    ),
    "f-cfg-02": (
        "pipeline",
        "vllm-project/vllm-omni#922",
        other_question("guidance/*", "guided", r"scale (is|of) 4|\b4(\.0)?\b", scale=lambda scale: 4.0),
    ),
    "f-i2i-01": (
        "pipeline",
        "CompVis/stable-diffusion#533",
        wrong_parts(
            "calls/*", "begin", r"next|t \+ 1|above|one (level|timestep)|another level", begin=_one_level_up
        ),
    ),
    "f-i2i-02": (
        "pipeline",
        "black-forest-labs/flux#36; invoke-ai/InvokeAI#252",
        wrong_parts(
            "calls/*diffusers*",
            "sigmas",
            "round|one (step|call) more|strength|share",
            share=lambda e: fewer_rounded_up,
        ),
    ),
    "f-cn-01": (
        "pipeline",
        "lllyasviel/stable-diffusion-webui-forge#55",
        wrong_answer("control/*", "added", "first (1 of|item|picture|half|slice)|item 0|batch", _not_the_first),
    ),
    "f-cn-02": (
        "pipeline",
        "invoke-ai/InvokeAI#3595",
        wrong_answer(
            "control/*guess*",
            "text",
            "uncond|other half|without (the|a) prompt|negative|first half",
            _text_of_uncond,
        ),
    ),
    "f-inp-01": (
        "pipeline",
        "Nerogar/OneTrainer#363",
        wrong_answer(
            "inpaint/*", "shown|cond", "not masked|whole|unmasked|mask left out|picture itself", _whole_picture
        ),
    ),
    "f-vae-01": (
        "pipeline",
        "huggingface/diffusers#5243",
        wrong_answer(
            "latents/sdxl-by*", "shown_latent", "mean.*(std|spread|deviation)|(std|spread).*mean", _mean_for_std
        ),
    ),
    "f-vae-02": (
        "pipeline",
        "Comfy-Org/ComfyUI#16436",
        wrong_answer(
            "tiles/*", "picture", "raw|not yet|unblended|as (they were )?decoded|before", _raw_neighbours()
        ),
    ),
    "f-vae-03": (
        "pipeline",
        "leejet/stable-diffusion.cpp#564",
        wrong_answer(
            "tiles/*",
            "picture",
            "last (tile|column)|right|zero.*(last|behind|tail|beyond)|(last|tail|columns).*zero",
            lambda case, v, y: _tiles(case, v, _last_columns_skipped),
        ),
    ),
    "f-vae-04": (
        "pipeline",
        "Nerogar/OneTrainer#440",
        wrong_answer("pixels/*", "bytes", r"0\.\.1|0 to 1|-1\.\.1|range", _unit_range),
    ),
    "f-xl-01": (
        "pipeline",
        "mosaicml/diffusion#67",
        wrong_parts("conditioning/sdxl*", r"\by\b", "width|swap", size=lambda size: size[::-1]),
    ),
    "f-rng-01": (
        "pipeline",
        "Panchovix/stable-diffusion-webui-reForge#350",
        wrong_parts(
            "requests/*",
            "noise_2",
            "(last|first|earlier|previous|before).*(stream|generator|request)|goes on|continu",
            stream=lambda seed, new, before: before or new,
        ),
    ),
    "f-rng-02": (
        "pipeline",
        "huggingface/diffusers#612",
        wrong_parts(
            "noising/*", "noise", "one (stream|generator)|shared|batch|all pictures", streams=_one_generator
        ),
    ),
    "f-te-01": (
        "tokens",
        "CrispStrobe/CrispEmbed#30",
        wrong_parts("clip_tokens/*", "ids", "</w>|end of (a )?word|word.*end|blank", encode=_no_end_of_word),
    ),
    "f-te-02": (
        "tokens",
        "openai/CLIP#343; leejet/stable-diffusion.cpp#1975",
        wrong_parts("clip_tokens/*", "ids", "digit|number", encode=_runs_of_digits),
    ),
    "f-te-03": (
        "tokens",
        "microsoft/onnxruntime-extensions#462",
        wrong_parts("clip_tokens/*", "ids", "line|white|blank", encode=_lines_kept),
    ),
    "f-te-04": (
        "tokens",
        "invoke-ai/InvokeAI#2294",
        wrong_parts(
            "clip_tokens/*",
            "ids",
            "blank|white|space|run together|joined",
            clean=lambda p: re.sub(r"\s{2,}", "", p),
        ),
    ),
    "f-te-05": (
        "tokens",
        "hlky/nataili#159",
        wrong_answer(
            "clip_tokens/*weights", "weights", "first (bracket|part|weight)|later|second", _first_bracket_alone
        ),
    ),
    "f-te-06": (
        "tokens",
        "huggingface/transformers#12648",
        wrong_parts("clip_tokens/*", "ids", "accent|NFD|diacrit|combining|ASCII", clean=_without_accents),
    ),
    "f-te-07": (
        "tokens",
        "replicate/cog-flux#19",
        wrong_answer("clip_tokens/*", "weights", "chunk", _weights_of_the_first_chunk),
    ),
    "f-te-08": (
        "tokens",
        "invoke-ai/InvokeAI#2378",
        wrong_parts("clip_tokens/*", "ids", "pad", pad=lambda ids, rule: ids),
    ),
    "f-te-09": (
        "tokens",
        "black-forest-labs/flux#511",
        wrong_answer(
            "language_tokens/flux*",
            "mask",
            "pad|ones|tokens alone|mask where the encoder has none",
            _padding_hidden,
        ),
    ),
    "f-ld-01": (
        "loader",
        "leejet/stable-diffusion.cpp#1898",
        wrong_answer("weights/fp8*", "weight", "scale.*(left out|not|ignored)|without.*scale", _unscaled),
    ),
    "f-ld-02": (
        "loader",
        "safetensors/safetensors#448",
        wrong_answer("weights/*f16", "weight", "byte", _bytes_swapped),
    ),
    "f-ld-03": (
        "loader",
        "Comfy-Org/ComfyUI#15114",
        wrong_answer("adapter/lokr*", "merged", "alpha", _alpha_of_whole_factors),
    ),
    "f-ld-04": (
        "loader",
        "invoke-ai/InvokeAI#5213",
        wrong_answer(
            "textual_inversion/*sdxl", "clip_g", "clip_g|second encoder|left out|not read", _second_encoder_empty
        ),
    ),
    "f-ld-05": (
        "loader",
        "huggingface/diffusers#3437",
        wrong_answer("adapter/*", "merged", "(left out|skipped|not applied|not merged|dropped)", _no_convolutions),
    ),
}
FRESH_STAGES = {id: HeldOut(*row) for id, row in _TABLE.items()}
