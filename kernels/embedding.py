"""Embedding lookup."""


def embedding(ids, weight):
    """Take a row of the table for each id.

        y[..., :] = weight[ids[...], :]

    ids:    [...], integers in [0, V)
    weight: [V, D]
    -> y:   [..., D], dtype of weight

    Raises IndexError for an id outside the table; a negative id does not count from the end.
    Source: torch.nn.Embedding.
    """
    if ids.size and (ids.min() < 0 or ids.max() >= weight.shape[0]):
        raise IndexError(f"token ids {ids.min()}..{ids.max()} do not fit a table of {weight.shape[0]} rows")
    return weight[ids]
