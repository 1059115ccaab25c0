from refsd.samplers.churn import NO_CHURN, churned
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def heunpp2(model, x, sigmas, noise=no_noise, callback=no_callback, churn=NO_CHURN):
    """Sample with Heun++: average the slopes at three sigmas, weighted by the sigmas. Three calls a step.

        d' = (1 - w_2 - w_3) d + w_2 d_2 + w_3 d_3,  w_2 = sigma_{i+1} / 3 sigma_0,  w_3 = sigma_{i+2} / 3 sigma_0

    The last step but one leaves out d_3 and divides by 2 sigma_0; the last is an Euler step. The weights belong to
    no quadrature rule, so the order is 1.

    sigmas: [n + 1], falling
    noise:  called in the steps in which `churn` draws noise
    Source: Carzit/sd-webui-samplers-scheduler; ComfyUI and Forge, sample_heunpp2.
    """
    steps = len(sigmas) - 1
    levels = sigmas.tolist()
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, steps, noise, churn)
        denoised = model(x, sigma_hat)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma_hat
        dt = sigma_next - sigma_hat
        if i == steps - 1:
            d_prime = d
        else:
            x_2 = x + d * dt
            denoised_2 = model(x_2, sigma_next)
            d_2 = (x_2 - denoised_2) / sigma_next
            if i == steps - 2:
                w_2 = sigma_next / (2 * levels[0])
                d_prime = d * (1 - w_2) + d_2 * w_2
            else:
                sigma_3 = levels[i + 2]
                x_3 = x_2 + d_2 * (sigma_3 - sigma_next)
                denoised_3 = model(x_3, sigma_3)
                d_3 = (x_3 - denoised_3) / sigma_3
                w_2, w_3 = sigma_next / (3 * levels[0]), sigma_3 / (3 * levels[0])
                d_prime = d * (1 - w_2 - w_3) + d_2 * w_2 + d_3 * w_3
        x = x + d_prime * dt
    return x
