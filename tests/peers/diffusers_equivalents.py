"""What of refsd's a configured scheduler of diffusers equals: the code of the table in docs/samplers.md."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from diffusers_steps import DRAWN, START, Stepped, is_a_flow, keeps_unit_variance, network

from refsd.samplers import FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.distilled import consistent
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.parameterization import EPS, FLOW, X0, Prediction, V, denoiser, edm
from refsd.samplers.sa_solver import two_weights

Solver = Callable[..., np.ndarray]
# Of latents that are a data + sigma n: (x - sigma eps) / a, a x - sigma v.
FLOW_EPS = Prediction("eps of a flow", lambda sigma: (1 / (1 - sigma), -sigma / (1 - sigma), 1.0))
FLOW_V = Prediction("v of a flow", lambda sigma: (1 - sigma, -sigma, 1.0))
FLOW_X0 = Prediction("x0 of a flow", lambda sigma: (0.0, 1.0, 1.0))


class NotOfferedError(Exception):
    """What docs/samplers.md says refsd does not have."""


def run(stepped: Stepped, step_with: dict | None = None) -> np.ndarray:
    """refsd's run on the scheduler's own sigmas, timesteps and noise, in the scheduler's scale."""
    scheduler, sigmas = stepped.scheduler, stepped.sigmas
    solver = solver_of(scheduler, len(sigmas) - 1, step_with or {})
    model = denoiser(network, _Told(stepped.times), prediction_of(scheduler))
    model = _clipped(model, scheduler)
    if "LCM" in type(scheduler).__name__ and not is_a_flow(scheduler):
        levels = _Known(sigmas, stepped.times)
        model = consistent(model, levels, scheduler.config.timestep_scaling)
    noise = lambda sigma, sigma_next: DRAWN[int(np.argmin(np.abs(sigmas[:-1] - sigma)))]
    x = solver(model, START if is_a_flow(scheduler) else START * sigmas[0], sigmas, noise)
    return x / np.sqrt(sigmas[-1] ** 2 + 1) if keeps_unit_variance(scheduler) else x


class _Told:
    """Levels of which the network is told the scheduler's timesteps, call by call."""

    def __init__(self, times):
        self._times = iter(times)

    def to_t(self, sigma):
        return next(self._times)


class _Known:
    """The timestep of a sigma of the schedule."""

    def __init__(self, sigmas, times):
        self._times = dict(zip(sigmas.tolist(), times, strict=False))

    def to_t(self, sigma):
        return self._times[sigma]


def _clips(scheduler) -> bool:
    return scheduler.config.get("clip_sample", False) and not type(scheduler).__name__.startswith("CogVideoX")


def _clipped(model, scheduler):
    if not _clips(scheduler):
        return model
    most = scheduler.config.clip_sample_range
    return lambda x, sigma: np.clip(model(x, sigma), -most, most)


def prediction_of(scheduler) -> Prediction:
    kind = getattr(scheduler.config, "prediction_type", "flow_prediction")
    if hasattr(scheduler.config, "sigma_data"):
        return edm_of(kind, scheduler.config.sigma_data)
    if not is_a_flow(scheduler):
        if kind == "flow_prediction":
            raise NotOfferedError("flow_prediction where x is no flow's")
        return {"epsilon": EPS, "v_prediction": V, "sample": X0}[kind]
    return {"flow_prediction": FLOW, "epsilon": FLOW_EPS, "v_prediction": FLOW_V, "sample": FLOW_X0}[kind]


def edm_of(kind: str, sigma_data: float) -> Prediction:
    """Karras et al.'s preconditioning; by "v_prediction" diffusers means it with the other sign."""
    scalings = edm(sigma_data).scalings

    def turned(sigma):
        c_skip, c_out, c_in = scalings(sigma)
        return c_skip, -c_out if kind == "v_prediction" else c_out, c_in

    return Prediction(kind, turned)


def solver_of(scheduler, n: int, step_with: dict) -> Solver:
    """Raises NotOfferedError."""
    name, config = type(scheduler).__name__, scheduler.config
    if getattr(config, "thresholding", False):
        raise NotOfferedError("thresholding")
    return SOLVERS[name](scheduler, n, step_with)


def _plain(name: str) -> Callable[..., Solver]:
    return lambda scheduler, n, step_with: SAMPLERS[name]


def _flow(name: str) -> Callable[..., Solver]:
    return lambda scheduler, n, step_with: partial(FLOW_SAMPLERS[name], **step_with)


def _euler(scheduler, n, step_with):
    if step_with.get("s_churn"):
        raise NotOfferedError("churn after the network has answered")
    return SAMPLERS["euler"]


def _multistep(scheduler, n, step_with):
    config = scheduler.config
    kind = getattr(config, "algorithm_type", "sde-dpmsolver++")  # the cosine schedule's
    if kind not in ("dpmsolver++", "sde-dpmsolver++"):
        raise NotOfferedError("DPM-Solver in eps")
    noisy, flow, order = kind.startswith("sde"), is_a_flow(scheduler), config.solver_order
    if noisy and hasattr(config, "sigma_data") and config.final_sigmas_type == "sigma_min":
        raise NotOfferedError("noise over a last step of no length, of the root of a rounding error")
    last_two = config.lower_order_final and n < 15
    if order == 1:
        if noisy and flow:
            raise NotOfferedError("the SDE's first order on a flow")
        return SAMPLERS["euler_a" if noisy else "euler"]
    if order == 2:
        lower = last_two or config.euler_at_final
        if not noisy and config.solver_type == "midpoint":
            solver = FLOW_SAMPLERS["dpm++2m_log_snr"] if flow else SAMPLERS["dpm++2m"]
            return partial(solver, lower_order_final=lower)
        name = "dpm++2m_sde" if config.solver_type == "midpoint" else "dpm++2m_sde_heun"
        return partial((FLOW_SAMPLERS if flow else SAMPLERS)[name], eta=float(noisy), lower_order_final=lower)
    if noisy and n > 2:
        raise NotOfferedError("the third order with noise")
    if config.euler_at_final and not last_two and config.final_sigmas_type == "sigma_min":
        raise NotOfferedError("the third order before a last step of the first")
    midpoint, table = config.solver_type == "midpoint", FLOW_SAMPLERS if flow else SAMPLERS
    return partial(table["dpm++3m_sde"], eta=float(noisy), lower_order_final=last_two, midpoint=midpoint)


def _singlestep(scheduler, n, step_with):
    config, order = scheduler.config, scheduler.config.solver_order
    if config.algorithm_type != "dpmsolver++" or (config.solver_type == "heun" and order > 1):
        raise NotOfferedError("heun, noise, and DPM-Solver in eps")
    if order == 1:
        return SAMPLERS["euler"]
    # It sets lower_order_final by itself where steps are left over.
    name = f"dpm++{order}s"
    solver = FLOW_SAMPLERS[f"{name}_log_snr"] if is_a_flow(scheduler) else SAMPLERS[name]
    return partial(solver, lower_order_final=config.lower_order_final)


def _deis(scheduler, n, step_with):
    config = scheduler.config
    solver = FLOW_SAMPLERS["deis_log_snr"] if is_a_flow(scheduler) else SAMPLERS["deis"]
    return partial(solver, order=config.solver_order, lower_order_final=config.lower_order_final and n < 15)


def _uni_pc(scheduler, n, step_with):
    config = scheduler.config
    if not config.predict_x0 or config.disable_corrector or config.solver_p:
        raise NotOfferedError("UniPC in eps, without its corrector or with another predictor")
    name = "uni_pc" if config.solver_type == "bh1" else "uni_pc_bh2"
    solver = FLOW_SAMPLERS[f"{name}_log_snr"] if is_a_flow(scheduler) else SAMPLERS[name]
    return partial(solver, order=config.solver_order, lower_order_final=config.lower_order_final)


def _sa_solver(scheduler, n, step_with):
    config = scheduler.config
    if config.algorithm_type != "data_prediction":
        raise NotOfferedError("SA-Solver in eps")
    used = scheduler.sigmas.numpy()
    if is_a_flow(scheduler):
        used = used / (1 - used)
    # Of what the network was told, which is rounded: the time of the sigma next to this one.
    at = lambda sigma: int(np.argmin(np.abs(used[:-1] - sigma)))
    tau = lambda sigma: float(scheduler.tau_func(scheduler.timesteps[at(sigma)]))
    return partial(
        (FLOW_SAMPLERS if is_a_flow(scheduler) else SAMPLERS)["sa_solver"],
        tau=tau,
        tau_at_start=True,
        predictor=config.predictor_order,
        corrector=config.corrector_order,
        weights=two_weights,
        lower_order_final=config.lower_order_final,
    )


def _ddim(scheduler, n, step_with):
    if _clips(scheduler) and not step_with.get("use_clipped_model_output"):
        raise NotOfferedError("clip_sample that leaves eps as it was")
    return partial(SAMPLERS["ddim_strided"], eta=step_with.get("eta", 0.0), levels=levels_of(scheduler))


def levels_of(scheduler) -> DiscreteLevels:
    alphas = scheduler.alphas_cumprod.numpy()
    return DiscreteLevels(np.sqrt((1 - alphas) / alphas))


def _pndm(scheduler, n, step_with):
    if not scheduler.config.skip_prk_steps:
        raise NotOfferedError("a Runge-Kutta start")
    in_v = scheduler.config.prediction_type == "v_prediction"
    return partial(SAMPLERS["pndm"], levels=levels_of(scheduler), in_v=in_v)


def _ddpm(scheduler, n, step_with):
    if scheduler.config.variance_type != "fixed_small":
        raise NotOfferedError("variances other than the posterior's")

    def solver(model, x, sigmas, noise):
        """It adds noise of a deviation of 1e-10 in a last step to 0 that begins above timestep 0."""
        last = 1e-10 * noise(sigmas[-2], 0.0) if scheduler.timesteps[-1] > 0 else 0.0
        return SAMPLERS["ddpm"](model, x, sigmas, noise) + last

    return solver


def _tcd(scheduler, n, step_with):
    return partial(SAMPLERS["tcd"], levels=levels_of(scheduler), **step_with)


def _flow_euler(scheduler, n, step_with):
    if scheduler.config.get("invert_sigmas"):
        raise NotOfferedError("rising sigmas")
    return FLOW_SAMPLERS["lcm"] if scheduler.config.get("stochastic_sampling") else FLOW_SAMPLERS["euler"]


SOLVERS: dict[str, Callable[[Any, int, dict], Solver]] = {
    "EulerDiscreteScheduler": _euler,
    "EDMEulerScheduler": _euler,
    "EulerAncestralDiscreteScheduler": _plain("euler_a"),
    "LMSDiscreteScheduler": _plain("lms"),
    "HeunDiscreteScheduler": _plain("heun"),
    "KDPM2DiscreteScheduler": _plain("dpm2"),
    "KDPM2AncestralDiscreteScheduler": _plain("dpm2_a"),
    "DPMSolverMultistepScheduler": _multistep,
    "EDMDPMSolverMultistepScheduler": _multistep,
    "DPMSolverSinglestepScheduler": _singlestep,
    "DEISMultistepScheduler": _deis,
    "UniPCMultistepScheduler": _uni_pc,
    "SASolverScheduler": _sa_solver,
    "DDIMScheduler": _ddim,
    "DDIMParallelScheduler": _ddim,
    "CogVideoXDDIMScheduler": _ddim,
    "PNDMScheduler": _pndm,
    "DDPMScheduler": _ddpm,
    "DDPMParallelScheduler": _ddpm,
    "LCMScheduler": _plain("lcm"),
    "TCDScheduler": _tcd,
    "FlowMatchEulerDiscreteScheduler": _flow_euler,
    "FlowMatchHeunDiscreteScheduler": _plain("heun"),
    "FlowMatchLCMScheduler": _flow("lcm"),
    "LTXEulerAncestralRFScheduler": lambda s, n, w: partial(FLOW_SAMPLERS["euler_a"], eta=s.config.eta),
}
