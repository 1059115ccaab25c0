"""Adaptive normalisation's second half."""


def modulate(x, shift, scale):
    """Scale and shift every token of an item by what its conditioning says.

        y = x * (1 + scale) + shift

    x:            [N, L, D]
    shift, scale: [N, D]
    -> y:         [N, L, D], dtype of x

    Source: Peebles & Xie 2022, section 3.2 (adaLN).
    """
    return x * (1 + scale[:, None]) + shift[:, None]
