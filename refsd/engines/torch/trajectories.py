"""Trajectory cases in torch: samplers in k-diffusion's form, float32, on the analytic model of the cases.

Written from k-diffusion's sampling.py and the papers, not from refsd.samplers, so that the two can disagree.
"""

import math
from collections.abc import Callable
from typing import Any

# torch, model(x, sigma), x, sigmas, draw(), eta -> x
Sampler = Callable[..., Any]


def _no_churn(x, sigma):
    return x, sigma


def _churn_of(torch, params: dict[str, Any], draw):
    """Return (x, sigma) -> both after churn. Noise is drawn in every step."""
    most = min(params["s_churn"] / params["steps"], math.sqrt(2) - 1)

    def churn(x, sigma):
        share = most if params["s_tmin"] <= sigma <= params["s_tmax"] else 0.0
        eps, raised = draw() * params["s_noise"], sigma * (share + 1)
        return (x + eps * (raised**2 - sigma**2).sqrt(), raised) if share > 0 else (x, sigma)

    return churn


def _euler(torch, model, x, sigmas, draw, eta, churn=_no_churn):
    for i in range(len(sigmas) - 1):
        x, sigma = churn(x, sigmas[i])
        d = (x - model(x, sigma)) / sigma
        x = x + d * (sigmas[i + 1] - sigma)
    return x


def _down_up(torch, sigma, sigma_next, eta):
    variance = sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2
    up = torch.minimum(sigma_next, eta * variance.sqrt())
    return (sigma_next**2 - up**2).clamp(min=0).sqrt(), up


def _euler_ancestral(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        down, up = _down_up(torch, sigmas[i], sigmas[i + 1], eta)
        d = (x - model(x, sigmas[i])) / sigmas[i]
        x = x + d * (down - sigmas[i])
        if sigmas[i + 1] > 0:
            x = x + draw() * up
    return x


def _heun(torch, model, x, sigmas, draw, eta, churn=_no_churn):
    for i in range(len(sigmas) - 1):
        x, sigma = churn(x, sigmas[i])
        d, dt = (x - model(x, sigma)) / sigma, sigmas[i + 1] - sigma
        if sigmas[i + 1] == 0:
            x = x + d * dt
            continue
        other = x + d * dt
        d_2 = (other - model(other, sigmas[i + 1])) / sigmas[i + 1]
        x = x + (d + d_2) / 2 * dt
    return x


def _dpm_2(torch, model, x, sigmas, draw, eta, churn=_no_churn):
    for i in range(len(sigmas) - 1):
        x, sigma = churn(x, sigmas[i])
        d = (x - model(x, sigma)) / sigma
        if sigmas[i + 1] == 0:
            x = x + d * (sigmas[i + 1] - sigma)
            continue
        middle = sigma.log().lerp(sigmas[i + 1].log(), 0.5).exp()
        other = x + d * (middle - sigma)
        d_2 = (other - model(other, middle)) / middle
        x = x + d_2 * (sigmas[i + 1] - sigma)
    return x


def _dpmpp_2s_ancestral(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i])
        down, up = _down_up(torch, sigmas[i], sigmas[i + 1], eta)
        if down == 0:
            x = denoised
        else:
            t, t_next = -sigmas[i].log(), -down.log()
            h = t_next - t
            middle = (-(t + h / 2)).exp()
            other = middle / sigmas[i] * x - (-h / 2).expm1() * denoised
            x = down / sigmas[i] * x - (-h).expm1() * model(other, middle)
        if sigmas[i + 1] > 0:
            x = x + draw() * up
    return x


def _dpmpp_2m(torch, model, x, sigmas, draw, eta):
    last = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i])
        if last is None or sigmas[i + 1] == 0:
            mixed = denoised
        else:
            r = (sigmas[i - 1].log() - sigmas[i].log()) / (sigmas[i].log() - sigmas[i + 1].log())
            mixed = (1 + 1 / (2 * r)) * denoised - 1 / (2 * r) * last
        h = sigmas[i].log() - sigmas[i + 1].log()
        x = sigmas[i + 1] / sigmas[i] * x - (-h).expm1() * mixed
        last = denoised
    return x


def _lcm(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        x = model(x, sigmas[i])
        if sigmas[i + 1] > 0:
            x = x + sigmas[i + 1] * draw()
    return x


def _euler_cfg_pp(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        denoised, uncond = model(x, sigmas[i])
        d = (x - uncond) / sigmas[i]
        x = denoised + d * sigmas[i + 1]
    return x


def _euler_ancestral_cfg_pp(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        denoised, uncond = model(x, sigmas[i])
        down, up = _down_up(torch, sigmas[i], sigmas[i + 1], eta)
        d = (x - uncond) / sigmas[i]
        x = denoised + d * down
        if sigmas[i + 1] > 0:
            x = x + draw() * up
    return x


def _dpmpp_2m_cfg_pp(torch, model, x, sigmas, draw, eta):
    last = None
    for i in range(len(sigmas) - 1):
        denoised, uncond = model(x, sigmas[i])
        if sigmas[i + 1] == 0:
            return denoised
        t, t_next = -sigmas[i].log(), -sigmas[i + 1].log()
        h = t_next - t
        mixed = -(-h).exp() * uncond
        if last is not None:
            r = (t + sigmas[i - 1].log()) / h
            mixed = mixed - (-h).expm1() / (2 * r) * (denoised - last)
        x = denoised + mixed + (-h).exp() * x
        last = uncond
    return x


def _flow_euler_ancestral(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        denoised, sigma, after = model(x, sigmas[i]), sigmas[i], sigmas[i + 1]
        if after == 0:
            return denoised
        down = after * (1 + (after / sigma - 1) * eta)
        ratio = (1 - after) / (1 - down)
        up = (after**2 - down**2 * ratio**2).sqrt()
        x = down / sigma * x + (1 - down / sigma) * denoised
        x = ratio * x + draw() * up
    return x


def _flow_dpmpp_2m_sde(torch, model, x, sigmas, draw, eta):
    """In half the log SNR. It is infinite at sigma 1, so the first sigma is at most 0.9999."""
    sigmas = torch.cat([sigmas[:1].clamp(max=1 - 1e-4), sigmas[1:]])
    last = h_last = None
    for i in range(len(sigmas) - 1):
        denoised, sigma, after = model(x, sigmas[i]), sigmas[i], sigmas[i + 1]
        if after == 0:
            return denoised
        h = ((1 - after) / after).log() - ((1 - sigma) / sigma).log()
        gone = -(-h * (1 + eta)).expm1()
        x = after / sigma * (-h * eta).exp() * x + (1 - after) * gone * denoised
        if last is not None:
            x = x + 0.5 * (1 - after) * gone * h / h_last * (denoised - last)
        x = x + draw() * after * (-(-2 * h * eta).expm1()).sqrt()
        last, h_last = denoised, h
    return x


def _flow_dpmpp_2m_log_snr(torch, model, x, sigmas, draw, eta):
    """In diffusers' form: alpha = 1 - sigma, lambda = ln alpha - ln sigma."""
    sigmas = torch.cat([sigmas[:1].clamp(max=1 - 1e-4), sigmas[1:]])
    lambdas = (1 - sigmas).log() - sigmas.log()
    last = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i])
        if sigmas[i + 1] == 0:
            return denoised
        h = lambdas[i + 1] - lambdas[i]
        gone = (1 - sigmas[i + 1]) * (-h).expm1()
        moved = sigmas[i + 1] / sigmas[i] * x - gone * denoised
        if last is not None:
            r = (lambdas[i] - lambdas[i - 1]) / h
            moved = moved - 0.5 * gone * (denoised - last) / r
        x, last = moved, denoised
    return x


def _flow_dpmpp_2s_ancestral(torch, model, x, sigmas, draw, eta):
    """ComfyUI's form: in a step from sigma 1 the middle is at 0.9999."""
    for i in range(len(sigmas) - 1):
        denoised, sigma, after = model(x, sigmas[i]), sigmas[i], sigmas[i + 1]
        if after == 0:
            return denoised
        down = after * (1 + (after / sigma - 1) * eta)
        ratio = (1 - after) / (1 - down)
        up = (after**2 - down**2 * ratio**2).sqrt()
        if sigma == 1:
            middle = torch.full_like(sigma, 0.9999)
        else:
            middle = (-0.5 * (((1 - sigma) / sigma).log() + ((1 - down) / down).log())).sigmoid()
        other = middle / sigma * x + (1 - middle / sigma) * denoised
        x = down / sigma * x + (1 - down / sigma) * model(other, middle)
        x = ratio * x + draw() * up
    return x


def _flow_euler_cfg_pp(torch, model, x, sigmas, draw, eta):
    for i in range(len(sigmas) - 1):
        denoised, uncond = model(x, sigmas[i])
        d = (x - (1 - sigmas[i]) * uncond) / sigmas[i]
        x = (1 - sigmas[i + 1]) * denoised + d * sigmas[i + 1]
    return x


SAMPLERS: dict[str, Sampler] = {
    "euler": _euler,
    "euler_a": _euler_ancestral,
    "heun": _heun,
    "dpm2": _dpm_2,
    "dpm++2s_a": _dpmpp_2s_ancestral,
    "dpm++2m": _dpmpp_2m,
    "lcm": _lcm,
    "euler_cfg_pp": _euler_cfg_pp,
    "euler_a_cfg_pp": _euler_ancestral_cfg_pp,
    "dpm++2m_cfg_pp": _dpmpp_2m_cfg_pp,
    "euler_churn": _euler,
    "heun_churn": _heun,
    "dpm2_churn": _dpm_2,
    "flow/euler": _euler,
    "flow/euler_a": _flow_euler_ancestral,
    "flow/dpm++2m_sde": _flow_dpmpp_2m_sde,
    "flow/dpm++2m_log_snr": _flow_dpmpp_2m_log_snr,
    "flow/dpm++2s_a_below_one": _flow_dpmpp_2s_ancestral,
    "flow/euler_cfg_pp": _flow_euler_cfg_pp,
}


def _levels(torch):
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    kept = torch.cumprod(1 - betas, 0)
    return ((1 - kept) / kept).sqrt().float()


def _flow_levels(torch):
    return torch.arange(1, 1001).float() / 1000


def _at(torch, levels, t):
    low = t.floor().long()
    high = t.ceil().long()
    if levels[-1] == 1:  # the levels of a flow are evenly spaced
        return levels[low].lerp(levels[high], t - low)
    return (levels.log()[low].lerp(levels.log()[high], t - low)).exp()


def _karras(torch, levels, n):
    ramp = torch.linspace(0, 1, n)
    most, least = levels[-1] ** (1 / 7), levels[0] ** (1 / 7)
    return (most + ramp * (least - most)) ** 7


SCHEDULES: dict[str, Callable[..., Any]] = {
    "karras": _karras,
    "discrete": lambda torch, levels, n: _at(torch, levels, torch.linspace(999, 0, n)),
    "exponential": lambda torch, levels, n: torch.linspace(levels[-1].log(), levels[0].log(), n).exp(),
    "sgm_uniform": lambda torch, levels, n: _at(torch, levels, torch.linspace(999, 0, n + 1)[:-1]),
    "simple": lambda torch, levels, n: levels[[999 - math.floor(i * 1000 / n) for i in range(n)]],
}


def refuses(params: dict[str, Any]) -> str | None:
    if params["sampler"] not in SAMPLERS:
        return f"no {params['sampler']} in torch here"
    return None if params["schedule"] in SCHEDULES else f"no schedule {params['schedule']} in torch here"


def run(torch, noise, params: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a trajectory case. noise: float32 [1 + draws, N, C, H, W]"""
    flow = params["sampler"].startswith("flow/")
    levels = _flow_levels(torch) if flow else _levels(torch)
    sigmas = SCHEDULES[params["schedule"]](torch, levels, params["steps"])
    sigmas = torch.cat([sigmas, sigmas.new_zeros(1)])[: params.get("end_at_step", params["steps"]) + 1]
    shown, answers, unconds, draws = [], [], [], iter(noise[1:])

    def model(x, sigma):
        """Denoise two known distributions: a normal of variance 1 (uncond), normals of variance 1/4 at -1 and 1."""
        a = 1 - sigma if flow else 1
        without = a * x / (a**2 + sigma**2)
        s = sigma**2 + 0.25 * a**2
        with_prompt = (0.25 * a * x + sigma**2 * torch.tanh(a * x / s)) / s
        shown.append(x)
        answers.append(without + params["guidance"] * (with_prompt - without))
        unconds.append(without)
        return (answers[-1], without) if pairs else answers[-1]

    sampler, pairs = SAMPLERS[params["sampler"]], params["sampler"].endswith("_cfg_pp")
    draw = lambda: next(draws)
    churn = {"churn": _churn_of(torch, params, draw)} if "s_churn" in params else {}
    latent = sampler(torch, model, noise[0] * sigmas[0], sigmas, draw, params.get("eta", 1.0), **churn)
    outputs = {"sigmas": sigmas, "x": torch.stack(shown), "denoised": torch.stack(answers), "latent": latent}
    return {**outputs, "uncond": torch.stack(unconds)} if pairs else outputs
