import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


def published_weights(h: list[float]) -> tuple[float, ...]:
    """Compute the weights of the newest slope and of up to three earlier ones from the last steps h, newest first.

        c_1 = 1 + h/2h_1 + s + t,  c_2 = -h/2h_1 - (1 + a) s - (1 + a + b) t
        c_3 = a s + (a + b (1 + h_2/h_3)) t,  c_4 = -a b t
        a = h_1/h_2,  b = h_1 (h_1 + h_2) / h_2 (h_2 + h_3)
        s = (1 - h^2 / 3h_1 (h_1 + h_2)) / 2
        t = ((1 - h/3(h + h_1)) / 2 + (1 - h/2(h + h_1)) h / 6(h + h_1 + h_2))
            h (h + h_1) (h + h_1 + h_2) / h_1 (h_1 + h_2) (h_1 + h_2 + h_3)

    On even steps, up to three weights are those of Adams-Bashforth; four are 57, -65, 43, -11 over 24. On uneven
    steps the sum of four is not 1.
    Source: zju-pi/diff-sampler solvers.py, ipndm_v; ComfyUI sample_ipndm_v.
    """
    if len(h) == 1:
        return (1.0,)
    r = h[0] / h[1] / 2
    if len(h) == 2:
        return 1 + r, -r
    a = h[1] / h[2]
    s = (1 - h[0] ** 2 / (3 * h[1] * (h[1] + h[2]))) / 2
    if len(h) == 3:
        return 1 + r + s, -r - (1 + a) * s, a * s
    two, three = h[0] + h[1], h[0] + h[1] + h[2]
    b = h[1] * (h[1] + h[2]) / (h[2] * (h[2] + h[3]))
    t = (1 - h[0] / (3 * two)) / 2 + (1 - h[0] / (2 * two)) * h[0] / (6 * three)
    t *= h[0] * two * three / (h[1] * (h[1] + h[2]) * (h[1] + h[2] + h[3]))
    c_3 = a * s + (a + b * (1 + h[2] / h[3])) * t
    return 1 + r + s + t, -r - (1 + a) * s - (1 + a + b) * t, c_3, -a * b * t


@sampler
def ipndm_v(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with ipndm and the published weights for uneven steps; lms has the exact ones. One call a step.

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  not used
    Source: ComfyUI sample_ipndm_v.
    """
    ds: list[np.ndarray] = []
    hs: list[float] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        d = (x - denoised) / sigma
        h = sigma_next - sigma
        ds, hs = [d, *ds[:3]], [h, *hs[:3]]
        x = sum((c * h * d for c, d in zip(published_weights(hs), ds, strict=True)), start=x)
    return x
