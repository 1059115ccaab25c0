"""Diffusers' transformer of Ideogram 4."""

from refsd.networks.original import diffusers
from refsd.networks.torch_tokens import flat

WORD, PICTURE, START = 3, 2, 65536


def _run(model, x, params):
    import torch

    (N, C, H, W), (_, J, E) = x["x"].shape, x["context"].shape
    there = x["context_mask"].long() if "context_mask" in x else x["context"].new_ones((N, J)).long()
    number = (there.cumsum(1) - 1) * there
    row, column = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    picture = torch.stack([0 * row, row, column], -1).reshape(1, -1, 3).to(there.device) + START
    ones = there.new_ones((N, H * W))
    y = model(
        torch.cat([x["x"].new_zeros((N, J, C)), flat(x["x"])], 1),
        x["timesteps"].to(x["x"].dtype),
        torch.cat([x["context"], x["context"].new_zeros((N, H * W, E))], 1),
        torch.cat([number[..., None].expand(-1, -1, 3), picture.expand(N, -1, -1)], 1),
        torch.cat([2 * there - 1, ones], 1),
        torch.cat([WORD * there, PICTURE * ones], 1),
    ).sample
    return {"out": y[:, J:].transpose(1, 2).reshape(x["x"].shape)}


def _taps(taps, x):
    """Drop the axis of one token that diffusers' time has, and the tokens that refsd does not project."""
    J = x["context"].shape[1]

    def ours(name, y):
        if name.startswith(("t_embedding", "adaln_proj")) or name.endswith("adaln_modulation"):
            return y[:, 0] if y.ndim == 3 else y
        if name == "input_proj":
            return y[:, J:]
        return y[:, :J] if name in ("llm_cond_norm", "llm_cond_proj") else y

    return {name: ours(name, y) for name, y in taps.items()}


ORIGINALS = {
    "ideogram4": diffusers("transformer", "Ideogram4Transformer2DModel", _run, laid_out=_taps, rounds_time=True),
}
