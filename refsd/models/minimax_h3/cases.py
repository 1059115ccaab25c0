"""Cases of MiniMax-H3's transformer, on tiny models of the same architecture."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, SHARE, context, every, lone, quiet, tiny_case, video


def _case(
    family: str, label: str, x: Recipe, words: int, shares: tuple[Recipe, Recipe], sound: int, **params
) -> Case:
    """Make a case. shares: of data in x and in the sound; sound: its tokens of a channel"""
    inputs = {"x": x, "timesteps": shares[0], "context": context(words)}
    inputs |= {"audio": Recipe((BATCH, 12, 2, sound)), "audio_timesteps": shares[1]}
    if params:
        inputs |= dict.fromkeys(("first", "last"), Recipe((BATCH, 8, 1, *x.shape[3:])))
    return tiny_case(family, "minimax-h3", label, inputs, **params)


CASES = [
    _case("minimax-h3", "video", video(8, 3, 4, 6), 7, (SHARE, every(0.75)), 5),
    _case("minimax-h3", "keyframes", video(8, 7, 4, 6), 9, (every(0.25), every(0.5)), 3, vision=[2, 5]),
    quiet(_case("minimax-h3", "quiet", video(8, 2, 2, 4), 5, (every(0.5), every(0.25)), 4)),
    lone(_case("minimax-h3-pruned", "curve", video(8, 2, 6, 4), 5, (SHARE, SHARE), 6)),
]
