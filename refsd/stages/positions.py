"""Number the tokens of a prompt with images for the rotary embedding of Qwen2.5-VL and Qwen3-VL (M-RoPE)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.models.qwen_vl import IMAGE_RULE, text_and_image_positions
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, part


class PositionRule(NamedTuple):
    """The parts of the rule.

    patches: number of an image's first token, rows, columns -> its positions, [rows * columns, 3]
    step:    rows, columns -> how much later the next word's number is
    seen:    [N, L], False for padding -> the same
    """

    patches: Callable[[int, int, int], np.ndarray]
    step: Callable[[int, int], int]
    seen: Callable[[np.ndarray], np.ndarray]


def _positions(rule: PositionRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    ids = np.array(p["ids"])
    numbered = IMAGE_RULE._replace(patches=rule.patches, step=rule.step)
    seen = rule.seen(ids != p["padding"])
    return {"positions": text_and_image_positions(ids, seen, p["image"], p["grids"], numbered)}


def _patches(change: Callable[[int, np.ndarray, np.ndarray], tuple]):
    """change: number of the first token, row and column of each patch -> time, height, width of each"""

    def patches(number: int, rows: int, columns: int) -> np.ndarray:
        row, column = np.indices((rows, columns)).reshape(2, -1)
        return np.stack([np.broadcast_to(x, row.shape) for x in change(number, row, column)], axis=-1)

    return patches


def _one_by_one(number: int, row: np.ndarray, column: np.ndarray) -> tuple:
    return (number + np.arange(row.size),) * 3


def _centred(number: int, row: np.ndarray, column: np.ndarray) -> tuple:
    return number, number + row - (row.max() + 1) // 2, number + column - (column.max() + 1) // 2


_WORD, _IMAGE, _PADDING = 5, 7, 0


def _words(*counts: int) -> list[int]:
    """Return ids of words and images in turn, so many of each."""
    return [id for i, n in enumerate(counts) for id in n * [_IMAGE if i % 2 else _WORD]]


def _case(label: str, ids: list[list[int]], *grids: tuple[int, int]):
    return case("positions", label, ids=ids, image=_IMAGE, padding=_PADDING, grids=[list(grid) for grid in grids])


STAGES = (
    Stage(
        "positions",
        "The time, height and width of each token of a prompt with images, for Qwen2.5-VL and Qwen3-VL.",
        inputs={},
        # ids: rows of token ids; image, padding: the ids of a patch and of padding, whose positions are 0; grids:
        # rows and columns of each image's merged patches
        params={"ids": REQUIRED, "image": REQUIRED, "padding": REQUIRED, "grids": REQUIRED},
        outputs={"positions": Output(("item", "token", "time, height, width"))},
        rule=PositionRule(IMAGE_RULE.patches, IMAGE_RULE.step, lambda seen: seen),
        run=_positions,
        known=(
            part(
                "patches are numbered like words",
                patches=_patches(_one_by_one),
                step=lambda rows, columns: rows * columns,
            ),
            part("an image's patches at one place", patches=_patches(lambda n, row, column: (n, n, n))),
            part("rows and columns swapped", patches=_patches(lambda n, row, column: (n, n + column, n + row))),
            part("rows and columns from 0", patches=_patches(lambda n, row, column: (n, row, column))),
            part("rows and columns around the middle", patches=_patches(_centred)),
            part(
                "time runs with the rows", patches=_patches(lambda n, row, column: (n + row, n + row, n + column))
            ),
            part(
                "time of an image times 2, tokens per second",
                patches=_patches(lambda n, row, column: (2 * n, n + row, n + column)),
            ),
            *(
                part(f"the next word counts on from {name}", step=step)
                for name, step in (
                    ("the number of patches", lambda rows, columns: rows * columns),
                    ("the rows", lambda rows, columns: rows),
                    ("the columns", lambda rows, columns: columns),
                    ("the smaller side", min),
                    ("one more than the larger side", lambda rows, columns: max(rows, columns) + 1),
                    ("one less than the larger side", lambda rows, columns: max(rows, columns) - 1),
                    ("the image's first patch", lambda rows, columns: 1),
                )
            ),
            part("padding is counted", seen=np.ones_like),
        ),
        cases=(
            _case("images", [_words(1, 6, 1, 10, 3)], (3, 2), (2, 5)),
            _case("padded-left", [_words(2, 4, 3), [_PADDING] * 4 + _words(2, 2, 1)], (2, 2), (1, 2)),
        ),
    ),
)
