"""DPM-Solver++ for the reverse SDE: single steps with a midpoint, and multistep solvers."""

import math

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback


@sampler
def dpmpp_sde(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, r=0.5):
    """Sample with DPM-Solver++ (stochastic): a noisy step to the midpoint, then a full step with both denoised.

        denoised' = (1 - 1 / 2r) denoised + 1 / 2r denoised_mid

    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  a Brownian motion's increments; called twice a step: to the midpoint, and over the whole step
    r:      position of the midpoint in the step, in -ln sigma
    Source: k-diffusion sample_dpmpp_sde.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        sigma_mid = sigma * (sigma_next / sigma) ** r
        fac = 1 / (2 * r)

        # Step 1: to the midpoint
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_mid, eta)
        ratio = sigma_down / sigma
        x_2 = ratio * x + (1 - ratio) * denoised
        x_2 = x_2 + noise(sigma, sigma_mid) * (s_noise * sigma_up)
        denoised_2 = model(x_2, sigma_mid)

        # Step 2: over the whole step
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_next, eta)
        ratio = sigma_down / sigma
        denoised_d = (1 - fac) * denoised + fac * denoised_2
        x = ratio * x + (1 - ratio) * denoised_d
        x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x


# What `weight` may be: k = h (1 + eta) -> weight of a step's extrapolated difference of denoised


def midpoint_weight(k: float) -> float:
    return -0.5 * math.expm1(-k)


def heun_weight(k: float) -> float:
    return math.expm1(-k) / k + 1


@sampler
def dpmpp_2m_sde(
    model,
    x,
    sigmas,
    noise,
    callback=no_callback,
    eta=1.0,
    s_noise=1.0,
    lower_order_final=False,
    weight=midpoint_weight,
):
    """Sample with DPM-Solver++(2M) SDE: extrapolate denoised by its last difference.

        x <- sigma_next / sigma e^-eta_h x + (1 - e^-k) denoised + weight(k) (denoised - denoised_last) / r
             + sigma_next sqrt(1 - e^-2eta_h) s_noise noise
        eta_h = eta h,  k = h + eta_h,  r = h_last / h

    sigmas: [n + 1], falling; a step to 0 gives denoised, a step of length 0 keeps x
    noise:  a Brownian motion's increments; called once a step if eta is not 0
    lower_order_final: the last step is of order 1 even if it does not lead to 0
    weight: midpoint_weight, or heun_weight for the Heun form
    Source: Lu et al. 2022 (DPM-Solver++), SDE-DPM-Solver++(2M); k-diffusion sample_dpmpp_2m_sde.
    """
    old_denoised, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        eta_h = eta * h
        x = sigma_next / sigma * math.exp(-eta_h) * x - math.expm1(-h - eta_h) * denoised
        if old_denoised is not None and h > 0 and not (lower_order_final and i == len(sigmas) - 2):
            r = h_last / h
            x = x + weight(h + eta_h) * (1 / r) * (denoised - old_denoised)
        if eta_h > 0:
            x = x + noise(sigma, sigma_next) * (sigma_next * math.sqrt(-math.expm1(-2 * eta_h)) * s_noise)
        old_denoised, h_last = denoised, h
    return x


@sampler
def dpmpp_3m_sde(
    model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, lower_order_final=False, midpoint=False
):
    """Sample with DPM-Solver++(3M) SDE: extrapolate denoised by its first two divided differences.

        x <- e^-k x + (1 - e^-k) denoised + phi_2 d1 - phi_3 d2 + sigma_next sqrt(1 - e^-2eta_h) s_noise noise
        k = h (1 + eta),  phi_2 = expm1(-k) / k + 1,  phi_3 = phi_2 / k - 1/2

    sigmas: [n + 1], falling; a step to 0 gives denoised; the first two steps are of order 1 and 2
    noise:  a Brownian motion's increments; called once a step if eta is not 0
    lower_order_final: the last step is of order 1, and the one before it of order 2 at most, even if it does not
            lead to 0
    midpoint: steps of order 2 are in the midpoint form; False: in the Heun form, as in k-diffusion
    Source: k-diffusion sample_dpmpp_3m_sde; without noise, diffusers DPMSolverMultistepScheduler of order 3.
    """
    denoised_1 = denoised_2 = None
    h_1 = h_2 = 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        eta_h = eta * h
        k = h + eta_h
        x = math.exp(-k) * x - math.expm1(-k) * denoised
        order = min(3, len(sigmas) - 1 - i) if lower_order_final else 3
        if denoised_1 is not None and denoised_2 is not None and order == 3:
            r0, r1 = h_1 / h, h_2 / h
            d1_0 = (denoised - denoised_1) / r0
            d1_1 = (denoised_1 - denoised_2) / r1
            d1 = d1_0 + (d1_0 - d1_1) * r0 / (r0 + r1)
            d2 = (d1_0 - d1_1) / (r0 + r1)
            phi_2 = heun_weight(k)
            phi_3 = phi_2 / k - 0.5
            x = x + phi_2 * d1 - phi_3 * d2
        elif denoised_1 is not None and order > 1:
            r = h_1 / h
            d = (denoised - denoised_1) / r
            x = x + (midpoint_weight(k) if midpoint else heun_weight(k)) * d
        if eta_h > 0:
            x = x + noise(sigma, sigma_next) * (sigma_next * math.sqrt(-math.expm1(-2 * eta_h)) * s_noise)
        denoised_1, denoised_2 = denoised, denoised_1
        h_1, h_2 = h, h_1
    return x
