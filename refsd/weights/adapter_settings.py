"""Read the settings that PEFT writes beside an adapter's tensors, or diffusers into the file's header.

Settings that change the arithmetic are read, or refused by name. Settings about training only, and the list of
adapted modules (the tensor names show it too), are ignored.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.files.json_files import read_json
from refsd.files.stored import Weights
from refsd.models.catalogue import DENOISERS, LANGUAGE_MODELS
from refsd.numerics.errors import BadInput

CONFIG = "adapter_config.json"
METADATA = "lora_adapter_metadata"
# diffusers' name of a text encoder -> the components that it may be; any other name is the denoiser's.
_ENCODERS = {
    "text_encoder": ("clip", *LANGUAGE_MODELS),
    "text_encoder_2": ("clip_g", "t5"),
    "text_encoder_3": ("t5",),
}
PREFIX = "base_model.model."  # begins every tensor name in a file that PEFT saved
PEFT_TYPES = ("LORA", "LOHA", "LOKR", "OFT", "BOFT", "IA3")

# Settings that refsd does not compute (_REFUSED), and the values that switch them off (_OFF).
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
# Values of init_lora_weights (by their first letters) with which PEFT subtracts the initial adapter from the
# model's weights.
_CHANGES_THE_MODEL = ("pissa", "corda", "olora", "loftq", "lora_ga")
# Numeric settings: name -> (lowest, highest).
_NUMBERS = {
    "lora_alpha": (-1e9, 1e9),
    "alpha": (-1e9, 1e9),
    "r": (0, 1e6),
    "eps": (0, 1e9),
    "num_cayley_neumann_terms": (0, 100),
}
_PATTERNS, _LONGEST = 4096, 300  # at most so many patterns, each of so many characters
_PLAIN = re.compile(r"[\w\-.\\^$|()\[\]?*+:]*", re.ASCII)
_REPEATED_GROUP, _REPEATS = re.compile(r"\)[*+?]"), re.compile(r"(?<!\\)[*+]")


class ModuleSettings(NamedTuple):
    """PEFT's settings of one module; the defaults are those of a file without PEFT's settings.

    alpha, rank: None if the settings do not have them
    rslora:      whether alpha is divided by the square root of the rank
    dora:        whether the adapter is a DoRA
    feedforward: whether an IA3 scales the module's input
    block_share: whether all blocks of an OFT are the same
    coft:        limit of the norm of each OFT block; None: no limit
    terms:       number of terms of the Neumann series that replaces the inverse in an OFT; None: the exact inverse
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
    """Return the settings by diffusers' name of a component ("unet", "text_encoder", ...); PEFT's own file has one
    entry, under "".

    Raises BadInput for a setting that refsd does not compute, or whose value is malformed.
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
    """Return the prefix of a component's module names in the file, and its settings.

    component: name in a checkpoint, as "unet"
    """
    for name, found in settings.items():
        components = _ENCODERS.get(name, DENOISERS)
        if not name:
            return PREFIX, found
        if component in components:
            return f"{name}.", found
    return "", {}


def of_module(settings: Mapping[str, Any], module: str) -> ModuleSettings:
    """Return the settings of one module; `module` is PEFT's name of it, which the patterns are matched against.

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
    """Return the value of the first pattern that matches the end of the module's name, else the default."""
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
    initial = settings.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGES_THE_MODEL):
        raise BadInput(
            f"{where}: init_lora_weights is {_short(initial)}: PEFT takes the beginning out of the "
            "model's weights, which refsd does not; save it with path_initial_model_for_weight_conversion, "
            "as a plain LoRA"
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
    """Raise BadInput for a pattern that could be slow to match: it may have two repeats, and none of a group."""
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
