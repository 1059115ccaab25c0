"""UniPC: a predictor from past values of denoised, and a corrector that also uses the new one. One call a step."""

import math
from collections.abc import Callable

import numpy as np

from refsd.samplers.latents import sampler, settle
from refsd.samplers.step import intervals, no_callback, no_noise


def b_1(h: float) -> float:
    """Return B_1(-h) = -h, which suits many steps and weak guidance; a prediction of denoised takes B at -h."""
    return -h


def b_2(h: float) -> float:
    """Return B_2(-h) = e^-h - 1."""
    return math.expm1(-h)


@sampler
def uni_pc(model, x, sigmas, noise=no_noise, callback=no_callback, order=3, lower_order_final=True, B=b_1):
    """Sample with UniPC, predicting denoised.

        predict: x' = sigma_next / sigma x + (1 - e^-h) m_0 - B sum_i rho_i D_i
        correct: the same from the previous x, also with the D of the new value

    m are values of denoised, D_i = (m_i - m_0) / r_i, r_i = (t_i - t_0) / h, t = -ln sigma; rho solves a
    Vandermonde system in r. The next step starts from the corrected x, with denoised of the predicted x'.

    sigmas: [n + 1], falling; the first steps are of lower order; a step to 0 gives denoised
    noise:  not used
    order:  values used, once there are that many
    lower_order_final: use at most as many values as steps are left
    B:      b_1, or b_2 for uni_pc_bh2
    Source: Zhao et al. 2023 (UniPC), algorithms 5 to 8; diffusers UniPCMultistepScheduler.
    """
    ms: list[np.ndarray] = []
    ts: list[float] = []
    x_last = x
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        t = -math.log(sigma)
        if i > 0:
            x = settle(step(x_last, ms, ts, t, B, denoised))
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        used = min(order, len(sigmas) - 1 - i) if lower_order_final else order
        ms, ts = [denoised, *ms][:used], [t, *ts][:used]
        x_last, x = x, step(x, ms, ts, -math.log(sigma_next), B)
    return x


def step(
    x: np.ndarray,
    ms: list[np.ndarray],
    ts: list[float],
    t_next: float,
    B: Callable[[float], float],
    m_next: np.ndarray | None = None,
) -> np.ndarray:
    """Compute x at t_next: e^-h x + (1 - e^-h) m_0 - B(h) sum_k rho_k (m_k - m_0) / r_k.

    ms, ts: values of denoised and their t, newest first
    m_next: denoised at t_next, for the corrector
    """
    h, m_0 = t_next - ts[0], ms[0]
    if h == 0:
        return x
    # If two earlier levels are equal, the polynomial does not exist and the result is NaN.
    r = [(t - ts[0]) / h or math.nan for t in ts[1:]]
    if m_next is not None:
        r, ms = [*r, 1.0], [*ms, m_next]
    B_h = B(h)
    x = math.exp(-h) * x - math.expm1(-h) * m_0
    for r_k, rho_k, m_k in zip(r, rhos(r, h, B_h), ms[1:], strict=True):
        x = x - B_h * rho_k / r_k * (m_k - m_0)
    return x


def rhos(r: list[float], h: float, B_h: float) -> list[float]:
    """Solve a step's Vandermonde system; a single unknown rho is set to 1/2 instead.

        sum_k r_k^j rho_k = -h (j + 1)! phi_(j+2)(-h) / B(h),  j = 0, 1, ...,  phi_j(z) = sum_i z^i / (i + j)!

    Source: Zhao et al. 2023 (UniPC), theorem 3.1; Bjorck & Pereyra 1970.
    """
    n = len(r)
    if n < 2:
        return [0.5] * n
    phi, factorial, rho = math.expm1(-h) / -h - 1, 1.0, []
    for k in range(n):
        rho.append(phi * factorial / B_h)
        factorial *= k + 2
        phi = phi / -h - 1 / factorial
    for k in range(n - 1):
        for i in range(n - 1, k, -1):
            rho[i] -= r[k] * rho[i - 1]
    for k in range(n - 2, -1, -1):
        for i in range(k + 1, n):
            rho[i] /= r[i] - r[i - k - 1] or math.nan
        for i in range(k, n - 1):
            rho[i] -= rho[i + 1]
    return rho
