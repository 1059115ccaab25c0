import numpy as np
import pytest

from refsd.samplers import guidance as g
from refsd.samplers import guidance_variants as variants

RNG = np.random.default_rng(3)
COND, UNCOND, OTHER = RNG.standard_normal((3, 2, 4, 3, 5))


def test_guidance_moves_away_from_uncond():
    assert g.guide(np.array(3.0), np.array(1.0), 7.0) == 15.0
    assert g.guide(np.array(3.0), np.array(1.0), 1.0) == 3.0
    assert g.guide(np.array(3.0), np.array(1.0), 0.0) == 1.0


def test_zimage_scale_is_one_less():
    np.testing.assert_allclose(g.guide(COND, UNCOND, 4.5), COND + 3.5 * (COND - UNCOND), atol=1e-14)


def test_image_guidance_with_one_scale_is_guidance():
    np.testing.assert_allclose(g.guide_image(COND, OTHER, UNCOND, 5.0, 5.0), g.guide(COND, UNCOND, 5.0), atol=1e-14)
    np.testing.assert_allclose(g.guide_image(COND, OTHER, UNCOND, 1.0, 1.0), COND, atol=1e-14)


def test_rescale_gives_each_picture_its_spread():
    guided = g.guide(COND, UNCOND, 9.0)
    y = g.rescale(guided, COND, 1.0)
    for picture, cond in zip(y, COND, strict=True):
        assert abs(picture.std() - cond.std()) < 1e-12
    np.testing.assert_array_equal(g.rescale(guided, COND, 0.0), guided)


def test_projection():
    along, across = g.project(COND, OTHER)
    np.testing.assert_allclose(along + across, COND, atol=1e-14)
    for a, b, onto in zip(along, across, OTHER, strict=True):
        assert abs(np.vdot(a, b)) < 1e-12 and abs(np.vdot(b, onto)) < 1e-12


def test_projected_guidance_with_nothing_held_back_is_guidance():
    y, average = g.adaptive_projected(COND, UNCOND, 6.0, eta=1.0)
    np.testing.assert_allclose(y, g.guide(COND, UNCOND, 6.0), atol=1e-13)
    np.testing.assert_array_equal(average, COND - UNCOND)


def test_projected_guidance_holds_the_norm_and_remembers():
    y, average = g.adaptive_projected(COND, UNCOND, 2.0, eta=1.0, norm_threshold=0.5)
    for picture, cond in zip(y, COND, strict=True):
        assert abs(np.linalg.norm(picture - cond) - 0.5) < 1e-12
    _, again = g.adaptive_projected(COND, UNCOND, 2.0, momentum=-0.5, average=average)
    np.testing.assert_allclose(again, 0.5 * (COND - UNCOND), atol=1e-14)


def test_projected_guidance_that_nobody_sets():
    """All along cond is taken out, nothing is held and nothing remembered."""
    difference, average = g.projected_difference(COND, UNCOND)
    np.testing.assert_allclose(difference, g.project(COND - UNCOND, COND)[1], atol=1e-14)
    np.testing.assert_array_equal(average, COND - UNCOND)


def test_dynamic_threshold():
    y = g.dynamic_threshold(3 * COND, 0.9, 2.5)
    assert abs(y).max() == 1
    np.testing.assert_array_equal(g.dynamic_threshold(COND / 10, 0.9, 2.5), COND / 10)


def test_skip_layer():
    np.testing.assert_array_equal(g.skip_layer(OTHER, COND, COND, 2.0), OTHER)
    np.testing.assert_allclose(g.skip_layer(OTHER, COND, UNCOND, 2.0), OTHER + 2 * (COND - UNCOND))


def test_smoothed_norm():
    """q / (1 + q^(1/s))^s stays below both 1 and q, and is the minimum as s falls."""
    norm = np.linalg.norm(COND[0] - UNCOND[0])
    held = lambda s: g.projected_difference(COND, UNCOND, 1.0, 0.5 * norm, smoothing=s)[0][0]
    np.testing.assert_allclose(held(1.0), (COND - UNCOND)[0] * 0.5 / 1.5, atol=1e-14)
    np.testing.assert_allclose(held(0.01), held(0.0), rtol=1e-12)


def test_sdcpp_norm_threshold():
    """A latent of SDXL's at 1024 pixels is its measure: 4 x 128 x 128 values."""
    assert g.sdcpp_norm_threshold(15.0, 4 * 128 * 128) == 15.0
    assert g.sdcpp_norm_threshold(15.0, 4 * 64 * 64) == 7.5


def test_zero_star_of_parallel_predictions_is_cond():
    np.testing.assert_allclose(variants.zero_star(COND, 3 * COND, 7.0), COND, rtol=1e-7)
    np.testing.assert_array_equal(variants.zero_star(COND, 0 * COND, 7.0), 7 * COND)


def test_nested_guidance():
    inner = g.guide(COND, OTHER, 5.0)
    np.testing.assert_allclose(
        variants.nested(COND, OTHER, UNCOND, 5.0, 2.0), g.guide(inner, UNCOND, 2.0), atol=1e-13
    )


def test_perpendicular_negative_of_the_prompt_itself_is_guidance():
    y = variants.perpendicular_negative(COND, COND, UNCOND, 4.0)
    np.testing.assert_allclose(y, g.guide(COND, UNCOND, 4.0), atol=1e-13)


def test_tangential_keeps_of_uncond_what_both_have_most_in_common():
    y = variants.tangential(COND, UNCOND, 5.0)
    for picture, cond, uncond in zip(y, COND, UNCOND, strict=True):
        both = np.stack([cond.ravel(), uncond.ravel()])
        _, mixed = np.linalg.eigh(both @ both.T)
        common = mixed[:, 1] @ both
        near = (uncond.ravel() @ common) / (common @ common) * common.reshape(cond.shape)
        np.testing.assert_allclose(picture, near + 5 * (cond - near), rtol=1e-10)


def test_rescale_in_v_at_phi_0_is_guidance():
    y = variants.rescale_in_v(OTHER, 1.7, COND, UNCOND, 4.0, 0.0)
    np.testing.assert_allclose(y, g.guide(COND, UNCOND, 4.0), atol=1e-13)


def test_lengths_of_pixels():
    """Held: nothing is longer than cond, and what is shorter stays. Matched: all are as long, and 0 stays 0."""
    guided = 1.5 * OTHER
    long, own = np.linalg.norm(guided, axis=1), np.linalg.norm(COND, axis=1)
    assert 0.2 < (long > own).mean() < 0.8
    held = np.linalg.norm(variants.hold_lengths(guided, COND, 0.5), axis=1)
    np.testing.assert_allclose(held, 0.5 * np.minimum(long, own), rtol=1e-7)
    matched = variants.match_lengths(guided, COND)
    np.testing.assert_allclose(np.linalg.norm(matched, axis=1), own, rtol=1e-12)
    assert not variants.match_lengths(0 * COND, COND).any()


def test_scale_schedule():
    assert variants.scale_schedule("7.5x2+1x1") == [7.5, 7.5, 1.0]
    for bad in ("", "7", "7x", "x3", "7x0", "7x2+", "7x1.5"):
        with pytest.raises(ValueError, match="expected"):
            variants.scale_schedule(bad)


def test_qwen_image_gives_each_token_the_length_that_cond_has():
    cond, uncond = RNG.standard_normal((2, 3, 4, 2, 6))
    y = g.rescale_tokens(g.guide(cond, uncond, 4.0), cond)
    for column in (0, 2, 4):
        square = np.s_[:, :, :, column : column + 2]
        assert np.linalg.norm(y[square][1]) == pytest.approx(np.linalg.norm(cond[square][1]), rel=1e-13)
        direction = y[square][1] / g.guide(cond, uncond, 4.0)[square][1]
        np.testing.assert_allclose(direction, direction.flat[0], rtol=1e-12)
