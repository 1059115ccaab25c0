import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.lms import adams_bashforth
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def lms_shifted(model, x, sigmas, noise=no_noise, callback=no_callback, order=4, shift=1):
    """Sample with stable-diffusion.cpp's lms, which applies older weights to slopes `shift` places too new.

        x <- x + c_0 d + c_1 d_1 + c_2 d_1 + c_3 d_2     with shift 1, d_1 being the slope before d
        lms:         c_0 d + c_1 d_1 + c_2 d_2 + c_3 d_3

    The order is below 2, because the weights do not match the slopes.

    sigmas: [n + 1], falling
    noise:  not used
    order:  slopes used, once there are that many; at most the number of steps
    shift:  0 gives lms
    Source: stable-diffusion.cpp sample_lms, which integrates the weights by sums over 1000 midpoints.
    """
    order = min(order, len(sigmas) - 1)
    weights = adams_bashforth(sigmas, order)
    ds: list[np.ndarray] = []
    for i, sigma, _ in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        ds = [d, *ds][:order]
        x = x + weights[i][0] * d
        for j in range(1, len(ds)):
            x = x + weights[i][j] * ds[max(j - shift, 1)]
    return x
