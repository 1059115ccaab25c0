"""Diffusers' transformer of LTX-2, called as its pipeline calls it."""

from refsd.networks.original import diffusers
from refsd.networks.torch_tokens import flat


def _run(model, x, params):
    N, C, F, H, W = x["x"].shape
    for part in model.modules():
        if "rope_type" in vars(part):
            part.rope_type = "split" if params.get("split", True) else "interleaved"
    time, frames = x["timesteps"], x.get("frame_timesteps")
    out, sound = model(
        flat(x["x"]),
        x["audio"],
        x["context"],
        x["audio_context"],
        time if frames is None else frames.repeat_interleave(H * W, dim=1),
        x["audio_timesteps"],
        time,
        x["audio_timesteps"],
        num_frames=F,
        height=H,
        width=W,
        fps=params.get("fps", 24.0),
        audio_num_frames=x["audio"].shape[1],
        isolate_modalities=params.get("isolated", False),
        spatio_temporal_guidance_blocks=list(params.get("values_only", ())),
        use_cross_timestep=params.get("cross_timestep", True),
        return_dict=False,
    )
    return {"out": out.transpose(1, 2).reshape(N, C, F, H, W), "audio_out": sound}


def _taps(taps, x):
    """Of what is computed from the times of tokens, keep a token of each frame."""
    N, _, F, H, W = x["x"].shape
    return {
        name: y[:: H * W] if "adaln_single." in name and len(y) == N * F * H * W else y for name, y in taps.items()
    }


ORIGINALS = {
    "ltx2": diffusers("transformer", "LTX2VideoTransformer3DModel", _run, laid_out=_taps),
}
