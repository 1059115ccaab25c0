"""Cases of LTX-2's transformer, on tiny models of the same architecture."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, DRAWN, context, every, quiet, tiny_case, video


def _case(
    family: str, label: str, x: Recipe, words: int, times: tuple[Recipe, Recipe], sound: int, frames=False, **params
) -> Case:
    """Make a case. times: of the video and of the sound; sound: its latents; frames: True if each has its time"""
    wide, narrow = (256, 128) if family == "ltx23" else (128, 128)
    inputs = {"x": x, "timesteps": times[0], "context": context(words, wide)}
    inputs |= {"audio": Recipe((BATCH, sound, 12)), "audio_timesteps": times[1]}
    inputs["audio_context"] = context(words, narrow)
    if frames:
        inputs["frame_timesteps"] = Recipe((BATCH, x.shape[2]), exponent=-11, offset=300.0)
    return tiny_case(family, "ltx2", label, inputs, **params)


CASES = [
    _case("ltx2", "video", video(8, 3, 4, 6), 7, (DRAWN, every(750.0)), 5),
    _case("ltx2", "frames", video(8, 5, 2, 3), 5, (every(250.0), DRAWN), 9, frames=True, cross_timestep=False),
    _case("ltx2", "interleaved", video(8, 2, 3, 2), 3, (every(500.0), every(125.0)), 4, split=False),
    quiet(_case("ltx2", "quiet", video(8, 2, 2, 4), 5, (every(500.0), every(250.0)), 4)),
    _case("ltx23", "video", video(8, 3, 2, 4), 5, (DRAWN, every(250.0)), 6, fps=50.0),
    _case("ltx23", "values", video(8, 2, 4, 2), 3, (every(250.0), DRAWN), 7, values_only=[1], isolated=True),
]
