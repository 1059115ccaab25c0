import math

from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


def orders(steps: int, highest: int, to_zero: bool, lower_order_final: bool = False) -> list[int]:
    """List the order of each step: repeat 1, 2, .. highest; left-over steps at the end get lower orders.

    to_zero: the last step leads to 0, and is of order 1
    lower_order_final: the left-over steps are at most 1, 2, .. highest - 1, and then 1
    Source: diffusers DPMSolverSinglestepScheduler.get_order_list.
    """
    whole, left = divmod(steps, highest)
    if (to_zero or lower_order_final) and left == 0:
        whole, left = whole - 1, highest
    tail = [highest - 1, 1] if left == highest else [left]
    plan = [k + 1 for length in [highest] * whole + tail for k in range(length)]
    return [*plan[:-1], 1] if to_zero else plan


@sampler
def dpmpp_singlestep(model, x, sigmas, noise=no_noise, callback=no_callback, highest=2, lower_order_final=False):
    """Sample with DPM-Solver++(2S): two steps of the schedule, of one call each, form one step of second order.

    Or (3S): three form one of third order; the last uses only two denoised.

        from sigma_a through sigma to sigma_next:  h = ln(sigma_a / sigma_next),  r = ln(sigma_a / sigma) / h
        2S: x <- e^-h x_a + (1 - e^-h) (denoised_a + (denoised - denoised_a) / 2r)
        3S: x <- e^-h x_a + (1 - e^-h) denoised_a + (1 - (1 - e^-h) / h) (denoised - denoised_a) / r

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  not used
    highest: 2 or 3
    lower_order_final: end with a step of order 1 (a step to 0 always is one), see orders
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 1; diffusers DPMSolverSinglestepScheduler, for 3S
    with solver_type "midpoint".
    """
    plan = orders(len(sigmas) - 1, highest, sigmas[-1] == 0, lower_order_final)
    x_s, denoised_s, sigma_s = x, x, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        if plan[i] == 1:
            x_s, denoised_s, sigma_s = x, denoised, sigma
        h, ratio = math.log(sigma_s / sigma_next), sigma_next / sigma_s
        x = ratio * x_s + (1 - ratio) * denoised_s
        if plan[i] > 1:
            r = math.log(sigma_s / sigma) / h
            d = (denoised - denoised_s) / r
            x = x + (0.5 * (1 - ratio) if plan[i] == 2 else 1 - (1 - ratio) / h) * d
    return x
