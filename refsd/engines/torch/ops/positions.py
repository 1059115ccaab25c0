"""Embeddings of position and time by torch."""

from refsd.engines.torch.ops.function import Function


def _timestep_embedding(torch, x, params):
    """By diffusers: torch has none."""
    from diffusers.models.embeddings import get_timestep_embedding

    y = get_timestep_embedding(
        x["t"].float(),
        params["dim"],
        flip_sin_to_cos=not params["sin_first"],
        downscale_freq_shift=params["freq_shift"],
        scale=params["scale"],
        max_period=params["max_period"],
    )
    return y.to(x["t"].dtype)


def _rope(torch, x, params):
    """By diffusers: angles in float64, rotation in float32."""
    from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed

    ids, pairing = x["ids"], -2 if params["halves"] else -1
    y = []
    for n, item in enumerate(x["x"]):
        parts = [
            get_1d_rotary_pos_embed(
                dim,
                ids[n % len(ids), :, axis],
                theta=params["theta"],
                use_real=True,
                repeat_interleave_real=not params["halves"],
                freqs_dtype=torch.float64,
            )
            for axis, dim in enumerate(params["axes_dim"])
        ]
        freqs = tuple(_joined(torch, part, params["halves"]) for part in zip(*parts, strict=True))
        turned = sum(params["axes_dim"])
        first = apply_rotary_emb(item[None, ..., :turned], freqs, True, pairing, 1)[0]
        y.append(torch.cat([first, item[..., turned:]], dim=-1))
    return torch.stack(y)


def _joined(torch, parts, halves):
    """Join the cos or sin of all axes. With `halves`, all first halves come before all second halves."""
    if not halves:
        return torch.cat(parts, dim=-1)
    first, second = zip(*(part.chunk(2, dim=-1) for part in parts), strict=True)
    return torch.cat([*first, *second], dim=-1)


def _sincos_positions(torch, x, params):
    """By diffusers, on the same grid."""
    from diffusers.models.embeddings import get_2d_sincos_pos_embed_from_grid

    rows, columns = x["rows"].double(), x["columns"].double()
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"))
    y = get_2d_sincos_pos_embed_from_grid(params["dim"], grid[:, None], output_type="pt")
    return y.to(x["rows"].dtype)


FUNCTIONS: dict[str, Function] = {
    "timestep_embedding": _timestep_embedding,
    "rope": _rope,
    "sincos_positions": _sincos_positions,
}
