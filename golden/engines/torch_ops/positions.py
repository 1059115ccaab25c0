"""Embeddings of position and time by torch."""

from refsd.golden.engines.torch_ops.function import Function


def _timestep_embedding(torch, x, params):
    """torch itself has none: diffusers'."""
    from diffusers.models.embeddings import get_timestep_embedding

    t = x["t"].float()
    y = get_timestep_embedding(
        t, params["dim"], flip_sin_to_cos=True, downscale_freq_shift=0, max_period=params["max_period"]
    )
    return y.to(x["t"].dtype)


FUNCTIONS: dict[str, Function] = {
    "timestep_embedding": _timestep_embedding,
}
