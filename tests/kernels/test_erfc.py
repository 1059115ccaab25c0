"""The normal distribution's tail: float64 where scipy knows it well, both fits made anew."""

import numpy as np
from scipy import special

from refsd.kernels.erfc import erfc64, normal_tail32


def test_erfc_where_scipy_knows_it_well():
    z = np.linspace(-6, 26, 3001)
    y = np.array([erfc64(v) for v in z])
    # scipy's own tail loses z^2 / 2 ULP; erfcx does not.
    expected = np.where(z < 0, special.erfc(z), special.erfcx(np.abs(z)) * np.exp(-(z.astype(np.longdouble) ** 2)))
    assert (np.abs(y / expected.astype(np.float64) - 1)).max() <= 6 * 2.0**-52


def test_erfc_coefficients_are_the_chebyshev_fit_that_they_claim_to_be():
    z_max, k = 28.0, 4.0
    end = (z_max - k) / (z_max + k)
    fit = np.polynomial.Chebyshev.interpolate(
        lambda t: special.erfcx(k * (1 + t) / (1 - t)) * (k + k * (1 + t) / (1 - t)), 22, domain=[-1, end]
    )
    z = np.linspace(0, 26, 501)
    t = (z - k) / (z + k)
    mine = np.array([erfc64(v) for v in z]) * np.exp(z.astype(np.longdouble) ** 2) * (z + k)
    np.testing.assert_allclose(mine.astype(np.float64), fit(t), rtol=3e-14)


# Found by test_every_float32.py: the argument that errs most.
WORST = 1.1631176


def test_normal_tail32_errs_by_a_few_ulp():
    a = np.concatenate([np.linspace(0, 13, 1001), np.geomspace(1e-30, 1, 99), [WORST]]).astype(np.float32)
    exact = np.array([erfc64(v) for v in a * np.sqrt(0.5, dtype=np.float64)]) / 2
    y = np.array([normal_tail32(v) for v in a], np.float64)
    assert (np.abs(y - exact) / np.spacing(exact.astype(np.float32))).max() <= 6.3
    assert normal_tail32(np.float32(0)) == 0.5 and normal_tail32(np.float32(15)) == 0
    assert np.isnan(normal_tail32(np.float32(np.nan)))


def test_normal_tail32_coefficients_are_the_chebyshev_fit_that_they_claim_to_be():
    a_max, k = 14.5, 3.0
    fit = np.polynomial.Chebyshev.interpolate(
        lambda t: special.erfcx(k * (1 + t) / (1 - t) * np.sqrt(0.5)) / 2 * (k + k * (1 + t) / (1 - t)),
        10,
        domain=[-1, (a_max - k) / (a_max + k)],
    )
    a = np.linspace(0, 12, 501, dtype=np.float32)
    wide = a.astype(np.float64)
    mine = np.array([normal_tail32(v) for v in a]) * np.exp(wide**2 / 2) * (wide + k)
    np.testing.assert_allclose(mine, fit((wide - k) / (wide + k)), rtol=6 * 2.0**-24)
