"""What PEFT writes beside an adapter's tensors, or diffusers into their header.

Everything that changes the arithmetic is read or refused by name. What only says how the adapter was trained, or
which modules it stands on (the tensors tell that too), is not looked at.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks import DENOISERS
from refsd.numerics.errors import BadInput
from refsd.weights.files import read_json
from refsd.weights.stored import Weights

CONFIG = "adapter_config.json"
METADATA = "lora_adapter_metadata"
# What diffusers calls a pipeline's text encoders -> the components that may be meant; any other is the denoiser.
_ENCODERS = {
    "text_encoder": ("clip", "qwen3", "mistral"),
    "text_encoder_2": ("clip_g", "t5"),
    "text_encoder_3": ("t5",),
}
PREFIX = "base_model.model."  # of every name in a file that PEFT saved
PEFT_TYPES = ("LORA", "LOHA", "LOKR", "OFT", "BOFT", "IA3")

# Settings that refsd does not compute, and the values that mean that they are off.
_OFF = (None, False, "none", {}, [])
_REFUSED = (
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "modules_to_save",
    "bias",
)
# Beginnings of init_lora_weights that take what they begin with out of the model's own weights.
_CHANGES_THE_MODEL = ("pissa", "corda", "olora", "loftq", "lora_ga")
# Numbers, and the range that each must be in.
_NUMBERS = {
    "lora_alpha": (-1e9, 1e9),
    "alpha": (-1e9, 1e9),
    "r": (0, 1e6),
    "eps": (0, 1e9),
    "num_cayley_neumann_terms": (0, 100),
}
_PATTERNS, _LONGEST = 4096, 300  # how many patterns, and how long each may be
_PLAIN = re.compile(r"[\w\-.\\^$|()\[\]?*+:]*", re.ASCII)
_REPEATED_GROUP, _REPEATS = re.compile(r"\)[*+?]"), re.compile(r"(?<!\\)[*+]")


class ModuleSettings(NamedTuple):
    """PEFT's settings of one module; without PEFT, as here.

    alpha, rank: None where nothing says them
    rslora:      whether alpha is divided by the root of the rank
    dora:        whether its rows are rescaled
    feedforward: whether an IA3 scales the module's input
    block_share: whether one block of an OFT is for all
    coft:        the limit of an OFT's blocks; None: there is none
    terms:       of the series that stands for the inverse in an OFT; None: the inverse itself
    """

    alpha: float | None = None
    rank: int | None = None
    rslora: bool = False
    dora: bool = False
    feedforward: bool = False
    block_share: bool = False
    coft: float | None = None
    terms: int | None = 5


def read_settings(path: Path, weights: Weights) -> dict[str, dict[str, Any]]:
    """Of what diffusers calls a component ("unet", "text_encoder", ...); under "" those of a whole file of PEFT's.

    Raises BadInput for a setting that refsd does not read, or that is no such thing.
    """
    config = path.with_name(CONFIG)
    metadata = weights.metadata.get(METADATA)
    found: dict[str, dict[str, Any]] = {}
    if isinstance(metadata, str):
        where = f"{path}: {METADATA} in the header"
        for name, value in _parsed(where, metadata).items():
            component, _, setting = name.partition(".")
            found.setdefault(component, {})[setting] = value
    elif config.is_file() and any(name.startswith(PREFIX) for name in weights):
        where = str(config)
        found[""] = read_json(config)
        kind = found[""].get("peft_type")
        if kind not in PEFT_TYPES:
            raise BadInput(f"{where}: peft_type is {_short(kind)}; refsd reads {', '.join(PEFT_TYPES)}")
    else:
        return {}
    for settings in found.values():
        _check(where, settings)
    return found


def of_component(settings: Mapping[str, dict[str, Any]], component: str) -> tuple[str, dict[str, Any]]:
    """What stands before its modules' names in the file, and its settings. component: of a checkpoint, "unet"."""
    for name, found in settings.items():
        meant = _ENCODERS.get(name, DENOISERS)
        if not name:
            return PREFIX, found
        if component in meant:
            return f"{name}.", found
    return "", {}


def of_module(settings: Mapping[str, Any], module: str) -> ModuleSettings:
    """The settings of the module that PEFT knows by this name, in which patterns are looked up.

    Source: PEFT utils/other.py, get_pattern_key; tuners/ia3/model.py, _check_target_module_feedforward.
    """
    if not settings:
        return ModuleSettings()
    alpha = settings.get("lora_alpha", settings.get("alpha"))
    alpha = _of_pattern(settings.get("alpha_pattern"), module, alpha)
    rank = _of_pattern(settings.get("rank_pattern"), module, settings.get("r"))
    return ModuleSettings(
        None if alpha is None else float(alpha),
        int(rank) if rank else None,
        bool(settings.get("use_rslora")),
        bool(settings.get("use_dora")),
        _is_feedforward(settings.get("feedforward_modules"), module),
        bool(settings.get("block_share")),
        float(settings.get("eps", 6e-5)) if settings.get("coft") else None,
        int(settings.get("num_cayley_neumann_terms", 5)) if settings.get("use_cayley_neumann", True) else None,
    )


def _of_pattern(patterns: Mapping[str, Any] | None, module: str, default):
    """The value of the first pattern that the end of the module's name is."""
    found = (value for pattern, value in (patterns or {}).items() if re.match(rf"(.*\.)?({pattern})$", module))
    return next(found, default)


def _is_feedforward(modules: Any, module: str) -> bool:
    if isinstance(modules, str):
        return bool(re.fullmatch(modules, module))
    return any(module.endswith(end) for end in modules or ())


def _parsed(where: str, text: str) -> dict[str, Any]:
    try:
        flat = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(f"{where} is not JSON; export the file again") from None
    return flat if isinstance(flat, dict) else {}


def _check(where: str, settings: Mapping[str, Any]) -> None:
    for setting in _REFUSED:
        if settings.get(setting) not in _OFF:
            raise BadInput(
                f"{where}: {setting} is {_short(settings[setting])}: refsd does not compute that; merge the "
                "adapter with PEFT"
            )
    begun = settings.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_THE_MODEL):
        raise BadInput(
            f"{where}: init_lora_weights is {_short(begun)}: PEFT takes the beginning out of the model's weights, "
            "which refsd does not; save it with path_initial_model_for_weight_conversion, as a plain LoRA"
        )
    for setting, (low, high) in _NUMBERS.items():
        value = settings.get(setting)
        if value is not None and not _is_number(value, low, high):
            raise BadInput(f"{where}: {setting} is {_short(value)}; a number from {low:g} to {high:g} expected")
    for setting, (low, high) in {"alpha_pattern": (-1e9, 1e9), "rank_pattern": (1, 1e6)}.items():
        patterns = settings.get(setting) or {}
        if not isinstance(patterns, dict) or len(patterns) > _PATTERNS:
            raise BadInput(
                f"{where}: {setting}: at most {_PATTERNS} patterns of modules, and a number each, expected"
            )
        for pattern, value in patterns.items():
            _check_pattern(where, setting, pattern)
            if not _is_number(value, low, high):
                raise BadInput(
                    f"{where}: {setting}: {_short(pattern)} is {_short(value)}; a number from {low:g} to {high:g} "
                    "expected"
                )
    modules = settings.get("feedforward_modules")
    if isinstance(modules, str):
        _check_pattern(where, "feedforward_modules", modules)
    elif modules is not None and not (isinstance(modules, list) and all(isinstance(m, str) for m in modules)):
        raise BadInput(f"{where}: feedforward_modules is {_short(modules)}; names or a pattern expected")


def _check_pattern(where: str, setting: str, pattern: str) -> None:
    """A file must not be able to keep the matching busy: two repeats at most, and none of a group."""
    fits = len(pattern) <= _LONGEST and _PLAIN.fullmatch(pattern) and not _REPEATED_GROUP.search(pattern)
    try:
        re.compile(pattern)
    except re.error:
        fits = False
    if not fits or len(_REPEATS.findall(pattern)) > 2:
        raise BadInput(
            f"{where}: {setting}: {_short(pattern)} is no pattern that refsd reads: names, classes and "
            "alternatives, with two * or + at most, none of them behind a bracket"
        )


def _is_number(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
