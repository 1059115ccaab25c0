import numpy as np

from refsd.samplers import guidance as g

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


def test_dynamic_threshold():
    y = g.dynamic_threshold(3 * COND, 0.9, 2.5)
    assert abs(y).max() == 1
    np.testing.assert_array_equal(g.dynamic_threshold(COND / 10, 0.9, 2.5), COND / 10)


def test_skip_layer():
    np.testing.assert_array_equal(g.skip_layer(OTHER, COND, COND, 2.0), OTHER)
    np.testing.assert_allclose(g.skip_layer(OTHER, COND, UNCOND, 2.0), OTHER + 2 * (COND - UNCOND))
