"""Diffusers' transformer of MiniMax-H3, called as its pipeline calls it."""

from typing import Any

from refsd.models.minimax_h3 import AUDIO, CONDITION_TIME, PATCH, TEXT, VIDEO
from refsd.networks.original import diffusers
from refsd.networks.torch_tokens import joined, stacked


def _layout(x, params) -> dict[str, Any]:
    """Return what diffusers' pipeline tells of the sequence, which is the same for all items."""
    import torch
    from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep

    tags = torch.full(x["context"].shape[1:2], TEXT)
    vision = params.get("vision", ())
    for start, end in zip(vision[::2], vision[1::2], strict=True):
        tags[start:end] = VIDEO
    keyframes = tuple(which for which in ("first", "last") if which in x)
    sizes = *x["x"].shape[2:], x["audio"].shape[3]
    ids, tags, video, audio, text, still, _ = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        tags, *sizes, (1, PATCH, PATCH), 2, AUDIO, VIDEO, keyframes
    )
    which = torch.zeros_like(tags)
    which[audio], which[video[:still]] = 1, 2
    named = {"position_ids": ids, "token_tags": tags, "timestep_indices": which}
    named |= {"video_indices": video, "audio_indices": audio, "text_indices": text}
    return {name: tensor.to(x["x"].device) for name, tensor in named.items()}


def _run(model, x, params):
    from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents

    N, C, F, H, W = x["x"].shape
    T = x["audio"].shape[3]
    layout = _layout(x, params)
    frames = [patchify_video_latents(x[name], (1, PATCH, PATCH)) for name in ("first", "last", "x") if name in x]
    video = joined([rows.reshape(N, -1, C * PATCH**2) for rows in frames], 1)
    audio = x["audio"].permute(0, 2, 3, 1).reshape(N, 2 * T, -1)
    still = x["timesteps"].clamp(min=params.get("condition_time", CONDITION_TIME))
    times = stacked([x["timesteps"], x["audio_timesteps"], still])
    # The items of a batch share their times, so each has a call of its own.
    answers = [
        model(video[n, None], audio[n, None], x["context"][n, None], times[:, n], **layout, return_dict=False)
        for n in range(N)
    ]
    out, sound = (joined(parts, 0) for parts in zip(*answers, strict=True))
    tokens = out[:, -F * H * W // PATCH**2 :].reshape(N, F, H // PATCH, W // PATCH, C, PATCH, PATCH)
    return {
        "out": tokens.permute(0, 4, 1, 2, 5, 3, 6).reshape(x["x"].shape),
        "audio_out": sound.reshape(N, 2, T, -1).permute(0, 3, 1, 2),
    }


def _taps(taps, x):
    """Join the items, which have a call each, and drop the tokens that a head is not for."""
    items = range(1, len(x["x"]))
    again = {f"{name}.{n}" for name in taps for n in items}
    whole = {name: [y, *(taps[f"{name}.{n}"] for n in items)] for name, y in taps.items() if name not in again}
    sound, video = 2 * x["audio"].shape[3], x["x"][0, 0].numel() // PATCH**2
    kept = {"final_layer.video_out": slice(-video, None), "final_layer.audio_out": slice(-video - sound, -video)}

    def laid_out(name, parts):
        if parts[0].ndim == 2:  # of the times: all items' of the video before those of the sound
            return stacked(parts).transpose(0, 1).flatten(0, 1)
        return joined(parts, 0)[:, kept.get(name, slice(None))]

    return {name: laid_out(name, parts) for name, parts in whole.items()}


ORIGINALS = {
    "minimax-h3": diffusers("transformer", "MiniMaxH3Transformer3DModel", _run, laid_out=_taps),
}
