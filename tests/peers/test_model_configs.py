"""A few of the random configurations of model_configs.py, which runs as many as one likes."""

import pytest
from model_configs import FAMILIES, Draw, verdict

# diffusers imports its own FluxPosEmbed from where it deprecates it.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_configuration_agrees(family, tmp_path):
    word, said = verdict(family, 3000, tmp_path)
    assert word == "agrees", said


def drawn_with(family: str, field: str) -> int:
    """Return the seed of a configuration whose field is not the usual one."""
    usual = FAMILIES[family](Draw(0), False).fields.get(field)
    return next(s for s in range(2, 300, 3) if FAMILIES[family](Draw(s), True).fields.get(field) != usual)


@pytest.mark.parametrize(("family", "field"), [("zimage", "t_scale"), ("qwen3", "attention_bias")])
def test_what_refsd_does_not_compute_is_refused_by_name(family, field, tmp_path):
    word, said = verdict(family, drawn_with(family, field), tmp_path)
    assert word == "refused" and f"config.json: {field} is " in said


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("zimage", "norm_eps"),
        ("qwen3", "rms_norm_eps"),
        ("clip", "layer_norm_eps"),
        ("t5", "layer_norm_epsilon"),
        ("t5", "relative_attention_max_distance"),
    ],
)
def test_other_numbers_are_computed_with(family, field, tmp_path):
    word, said = verdict(family, drawn_with(family, field), tmp_path)
    assert word == "agrees", said


def test_waves_of_another_number(tmp_path):
    """FLUX.2's timestep_guidance_channels, which the weights tell."""
    seed = next(
        s for s in range(0, 300, 3) if FAMILIES["flux2"](Draw(s), False).fields["timestep_guidance_channels"] == 64
    )
    word, said = verdict("flux2", seed, tmp_path)
    assert word == "agrees", said


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("sd3", ["num_layers"]),
        ("flux", ["num_layers"]),
        ("flux", ["num_single_layers"]),
        ("flux", ["num_layers", "num_single_layers"]),
        ("chroma", ["num_layers"]),
        ("chroma", ["num_single_layers"]),
        ("flux2", ["num_layers"]),
        ("flux2", ["num_single_layers"]),
        ("zimage", ["n_refiner_layers"]),
        ("zimage", ["n_layers"]),
    ],
)
def test_stacks_of_no_blocks(family, fields, tmp_path):
    counts = ("num_layers", "num_single_layers", "n_layers", "n_refiner_layers")

    def empty(seed: int) -> list[str]:
        drawn = FAMILIES[family](Draw(seed), False).fields
        return [field for field in counts if drawn.get(field) == 0]

    word, said = verdict(family, next(seed for seed in range(0, 900, 3) if empty(seed) == fields), tmp_path)
    assert word == "agrees", said
