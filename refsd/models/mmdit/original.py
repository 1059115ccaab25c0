"""Diffusers' transformer of SD 3."""

from refsd.networks.original import Arguments, Given, diffusers, refuse, sample, timesteps


def _run(model, x, params):
    return {"out": model(x["x"], x["context"], x["y"], x["timesteps"]).sample}


def _read(model, given: Given) -> Arguments:
    refuse(given, "block_controlnet_hidden_states", "joint_attention_kwargs", "skip_layers")
    x = given["hidden_states"]
    inputs = {
        "x": x,
        "timesteps": timesteps(given, "timestep", len(x)),
        "context": given["encoder_hidden_states"],
        "y": given["pooled_projections"],
    }
    return Arguments(inputs, {}, lambda y: {"out": sample(y)})


ORIGINALS = {
    "mmdit": diffusers("transformer", "SD3Transformer2DModel", _run, read=_read),
}
