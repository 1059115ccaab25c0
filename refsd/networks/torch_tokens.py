"""Move between latents and tokens as diffusers' transformers take them, in torch."""


def pack(x):
    """Each 2x2 square becomes a token. [N, C, H, W] -> [N, H/2 * W/2, 4C]"""
    N, C, H, W = x.shape
    return x.reshape(N, C, H // 2, 2, W // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(N, H * W // 4, 4 * C)


def unpack(tokens, H, W):
    """Unpack 2x2 squares from tokens; drop a reference's tokens, which come last. [N, L, 4C] -> [N, C, H, W]"""
    y = tokens[:, : H * W // 4]
    return y.reshape(len(y), H // 2, W // 2, -1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(len(y), -1, H, W)


def flat(x):
    """Each pixel becomes a token. [N, C, H, W], or with frames -> [N, H * W, C]"""
    return x.flatten(2).transpose(1, 2)


def as_picture(tokens, high, wide):
    """[N, H * W, C] -> [N, C, H, W]"""
    return tokens.transpose(1, 2).reshape(len(tokens), -1, high, wide)


def grid(x, patch, before, after=()):
    """Return the ids of a latent's tokens: (*before, row, column, *after). -> float32 [L, A]"""
    import torch

    high, wide = (size // patch for size in x.shape[2:])
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    fixed = [torch.full((high, wide), value) for value in (*before, *after)]
    axes = [*fixed[: len(before)], rows, columns, *fixed[len(before) :]]
    return torch.stack(axes, -1).reshape(high * wide, -1).to(x.device, torch.float32)


def joined(parts, axis):
    import torch

    return torch.cat(parts, axis)


def stacked(parts):
    import torch

    return torch.stack(parts)


def first_tokens(taps, name, count):
    return {tap: y[:, :count] if tap == name else y for tap, y in taps.items()}
