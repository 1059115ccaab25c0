"""Engines behind A1111's API, /sdapi/v1: A1111, Forge, SD.Next, Easy Diffusion's sdkit, sd-server.

    a1111:URL[:PROFILE]   as a1111:http://127.0.0.1:7860, or ...:7860:torch-f16

PROFILE names the numerics under which the server computes. A server answers with bytes, so it is asked for whole
pictures; what the API cannot ask for is refused. The weights: refsd/engines/served_pictures.py.

Of these only sd-server was run. The dialect of the others is written from their documented API.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import CARDS
from refsd.engines.http_client import HttpClient
from refsd.engines.served_pictures import PROBE, how_to_load, pixels_of, request_of, split_argument, weights_name
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch
from refsd.numerics.deviations import DEVIATIONS, Deviation
from refsd.numerics.printable import printable
from refsd.numerics.profiles import GGML_CPU, PROFILES, TORCH_F16, Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.pipelines.settings import Settings
from refsd.samplers.schedules import SCHEDULES

EXAMPLE = "a1111:http://127.0.0.1:7860"


class Dialect(NamedTuple):
    """How one kind of server differs.

    name:       in reports
    card:       key of CARDS, the sampling conventions
    profile:    its usual numerics
    deviations: of UNets, by name
    cut_off:    it cuts off fractions where it makes bytes of a picture
    rngs:       refsd's name of a generator -> the server's option randn_source; None: the server's only one
    sigmas:     it takes the noise levels of a case
    """

    name: str
    card: str
    profile: Numerics
    deviations: tuple[str, ...]
    cut_off: bool
    rngs: Mapping[str, str | None]
    sigmas: bool


_WEBUI = Dialect("a1111", "a1111", TORCH_F16, (), True, {"cuda": "NV", "cpu": "CPU"}, False)
SD_SERVER = Dialect(
    "sd-server", "sdcpp", GGML_CPU, ("sdcpp/group-norm-eps", "sdcpp/gelu-tanh"), False, {"cuda": None}, True
)
# What a server of this kind has at a place -> its dialect; the first that fits.
_TOLD_BY = (
    ("/sdcpp/v1/capabilities", "", SD_SERVER),
    ("/sdapi/v1/options", "forge_preset", _WEBUI._replace(name="forge", card="forge")),
    ("/sdapi/v1/options", "sd_model_checkpoint", _WEBUI),
)
# refsd's samplers without noise of their own -> A1111's name. (sd-server's names are refsd's.)
_SAMPLERS = {
    "euler": "Euler",
    "euler_a": "Euler a",
    "heun": "Heun",
    "lms": "LMS",
    "dpm++2m": "DPM++ 2M",
    "dpm++2s_a": "DPM++ 2S a",
}


class A1111Engine:
    """Answer picture cases by /sdapi/v1/txt2img. Raises EngineFailure if no such server answers."""

    def __init__(self, client: HttpClient, profile: str = ""):
        self._client = client
        self._dialect = self._told()
        self.name = self._dialect.name
        self._numerics = PROFILES[profile] if profile else self._dialect.profile
        options = self._object("/sdapi/v1/options")
        self._loaded = printable(str(options.get("sd_model_checkpoint") or ""), 120)
        self.version = f"at {client.address} with {self._loaded or 'no model'}"
        self._samplers = self._names("/sdapi/v1/samplers")
        self._schedulers = self._names("/sdapi/v1/schedulers")

    def refuses(self, case: Case) -> str | None:
        request = request_of(case)
        if isinstance(request, str):
            return request
        assert case.model is not None
        if weights_name(case.model) not in self._loaded:
            name = weights_name(case.model)
            return f"the server has loaded {self._loaded or 'no model'}, not {name}: {how_to_load(case.model)}"
        settings, own = request.settings, self._dialect
        if CARDS[request.first_noise].first is not CARDS[own.card].first:
            return f"{own.name} does not scale the first noise as {request.first_noise} does"
        if settings.rng not in own.rngs:
            return (
                f"the API of {own.name} cannot ask for the generator {settings.rng}: it has {', '.join(own.rngs)}"
            )
        if settings.sigmas is not None and not own.sigmas:
            return f"the API of {own.name} cannot ask for noise levels"
        if settings.eta is not None:
            return f"eta of the samplers of {own.name} is not asked for here"
        if self._sampler(settings) is None:
            return f"{own.name} has no sampler that is refsd's {settings.sampler}"
        if settings.sigmas is None and self._scheduler(settings) is None:
            return f"{own.name} has no scheduler that is refsd's {settings.schedule}"
        return None

    def numerics(self, case: Case) -> Numerics:
        return self._numerics

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return tuple(DEVIATIONS[name] for name in self._dialect.deviations)

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        request = request_of(case)
        assert not isinstance(request, str)
        settings = request.settings
        answer = self._client.json("/sdapi/v1/txt2img", self._body(settings))
        place = f"{self._client.address}/sdapi/v1/txt2img"
        images = answer.get("images") if isinstance(answer, dict) else None
        if not isinstance(images, list) or not images or not isinstance(images[0], str):
            raise EngineFailure(f"{place} answers without a picture")
        try:
            data = base64.b64decode(images[0].rpartition(",")[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise EngineFailure(f"{place}: the picture is no base64: {error}") from None
        return pixels_of(data, settings.width, settings.height, place, self._dialect.cut_off)

    def _told(self) -> Dialect:
        for place, key, dialect in _TOLD_BY:
            found = self._client.has(place, PROBE)
            if isinstance(found, dict) and (not key or key in found):
                return dialect
        raise EngineFailure(
            f"{self._client.address} has no /sdapi/v1/options: it is no server of this kind, or A1111 without --api"
        )

    def _object(self, place: str) -> dict[str, Any]:
        found = self._client.json(place, timeout=PROBE)
        if not isinstance(found, dict):
            raise EngineFailure(f"{self._client.address}{place}: expected an object, found {type(found).__name__}")
        return found

    def _names(self, place: str) -> dict[str, str]:
        """List samplers or schedulers. -> name in lower case -> name"""
        found = self._client.json(place, timeout=PROBE)
        if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
            raise EngineFailure(f"{self._client.address}{place}: expected a list of objects with a name")
        return {str(one["name"]).lower(): str(one["name"]) for one in found}

    def _sampler(self, settings: Settings) -> str | None:
        name = settings.sampler or "euler_a"
        own = name if self._dialect is SD_SERVER else _SAMPLERS.get(name, "")
        return self._samplers.get(own.lower())

    def _scheduler(self, settings: Settings) -> str | None:
        """The server's name of the case's schedule, by what the server's card says that it computes."""
        rule = SCHEDULES.get(settings.schedule or "discrete")
        names = [name for name, other in CARDS[self._dialect.card].schedules.items() if other is rule]
        return next((self._schedulers[name] for name in names if name in self._schedulers), None)

    def _body(self, settings: Settings) -> dict[str, Any]:
        source = self._dialect.rngs[settings.rng or ""]
        body: dict[str, Any] = {
            "prompt": settings.prompt,
            "negative_prompt": settings.negative_prompt,
            "width": settings.width,
            "height": settings.height,
            "steps": settings.steps,
            "cfg_scale": settings.cfg_scale,
            "seed": settings.seed,
            "sampler_name": self._sampler(settings),
            "batch_size": 1,
            "n_iter": 1,
        }
        if settings.sigmas is None:
            body["scheduler"] = self._scheduler(settings)
        else:
            body["prompt"] += _extra_arguments(settings)
            body["steps"] = len(settings.sigmas) - 1
        if settings.clip_skip is not None:
            body["clip_skip"] = settings.clip_skip
        if source is not None:
            # ENSD and CLIP_stop_at_last_layers are the user's own options: they are set for this picture alone.
            body["override_settings"] = {
                "randn_source": source,
                "eta_noise_seed_delta": 0,
                "CLIP_stop_at_last_layers": settings.clip_skip or 1,
                "samples_format": "png",
            }
            body |= {"save_images": False, "send_images": True}
        return body


def _extra_arguments(settings: Settings) -> str:
    """sd-server reads arguments that A1111's API lacks in the prompt. Source: its routes_sdapi.cpp."""
    sampling = {"custom_sigmas": list(settings.sigmas or ())}
    return f"<sd_cpp_extra_args>{json.dumps({'sample_params': sampling})}</sd_cpp_extra_args>"


def find(path: str | None = None, timeout: float = 1800.0, **_) -> list[EngineSearch]:
    """Look for the server at URL[:PROFILE]."""
    if not path:
        return [EngineSearch("a1111", None, f"give {EXAMPLE}, the address of a server")]
    url, profile = split_argument(path, "")
    try:
        engine = A1111Engine(HttpClient(url, timeout), profile)
    except EngineFailure as error:
        return [EngineSearch("a1111", None, str(error))]
    return [EngineSearch(engine.name, engine)]
