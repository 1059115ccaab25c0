"""Find the rows of a wrong tap among the rows of other tensors: another token, layer or item."""

from collections.abc import Mapping

import numpy as np

# Rows and numbers of a row that can be told apart.
_LONG, _ROWS = 16, 4096
_NEAR = 2.0**-16
_LISTED = 3


def other_rows(found: np.ndarray, truth: np.ndarray, honest: np.ndarray, others: Mapping[str, np.ndarray]) -> str:
    """Say of which tap which rows stand here, if all wrong rows are rows of one; "" if none has them.

    others: tap -> its right values
    """
    if truth.ndim < 2 or truth.shape[-1] < _LONG or truth.size // truth.shape[-1] > _ROWS:
        return ""
    rows, right = (y.reshape(-1, truth.shape[-1]) for y in (found, truth))
    noise = np.abs(honest - truth).reshape(rows.shape).max() + _NEAR * np.sqrt(np.mean(right**2))
    wrong = np.flatnonzero(np.abs(rows - right).max(axis=1) > 8 * noise)
    if not wrong.size:
        return ""
    for name, y in {"its own": truth, **others}.items():
        if y.shape[-1:] != truth.shape[-1:] or y.size // y.shape[-1] > _ROWS:
            continue
        at = _matched(rows[wrong], y.reshape(-1, y.shape[-1]), 8 * noise)
        if at is not None:
            pairs = [
                f"row {_index(int(i), truth.shape)} is row {_index(int(j), y.shape)}"
                for i, j in zip(wrong[:_LISTED], at, strict=False)
            ]
            more = f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
            return f"other rows are taken: {', '.join(pairs)}{more} of {'its own' if name == 'its own' else name}"
    return ""


def _matched(rows: np.ndarray, of: np.ndarray, limit: float) -> np.ndarray | None:
    """Return the row of `of` that each row equals; None if one equals none."""
    square = np.einsum("ij,ij->i", of, of)
    at = np.argmin(square - 2 * (rows @ of.T), axis=1)
    return at if (np.abs(of[at] - rows).max(axis=1) <= limit).all() else None


def _index(row: int, shape: tuple[int, ...]) -> str:
    return str([int(i) for i in np.unravel_index(row, shape[:-1])])
