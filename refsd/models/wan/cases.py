"""Cases of Wan's transformer, on tiny models of the same architecture."""

from refsd.networks.cases import DRAWN, denoiser_case, every, quiet, video

CASES = [
    denoiser_case("wan", "wan", "frames", video(16, 3, 4, 6), DRAWN, 7),
    quiet(denoiser_case("wan", "wan", "picture", video(16, 1, 6, 4), every(250), 5)),
]  # fmt: skip
