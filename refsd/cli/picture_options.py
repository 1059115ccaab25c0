"""Give commands the options of refsd/pipelines/options.py, and read settings and files from their values."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsd.cli import parts
from refsd.cli.numerics import Profile
from refsd.pipelines.options import OPTIONS, REQUIRED, Option

if TYPE_CHECKING:
    from refsd.pipelines.settings import Settings

# Options that other commands have too.
_SHARED = {"numerics": Profile, "lora_rule": parts.LoraRule}
_BY_NAME = {option.name: option for option in OPTIONS}
_FILES = ("init_img", "mask", "control_image", "ref_image", "redux_image")


def options(*names: str, **changes: Any) -> list[Option]:
    """Return options by name. changes: fields of all of them, as panel="A whole picture" """
    return [_BY_NAME[name]._replace(**changes) for name in names]


def takes(*groups: Sequence[Option] | dict[str, Any]) -> Callable[[Callable], Callable]:
    """Decorate a command: in place of its **parameters it takes these options.

    groups: options; or parameter -> annotation, of files that are not in the table, by default None
    """
    more: dict[str, tuple[Any, Any]] = {}
    for group in groups:
        if isinstance(group, dict):
            more |= {name: (annotation, None) for name, annotation in group.items()}
        else:
            more |= {row.name: (_annotation(row), row.default) for row in group}

    def decorated(command: Callable) -> Callable:
        kept = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        given = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is REQUIRED else default,
                annotation=annotation,
            )
            for name, (annotation, default) in more.items()
        ]
        command.__dict__["__signature__"] = inspect.Signature([*kept, *given])
        command.__annotations__ = {p.name: p.annotation for p in (*kept, *given)}
        return command

    return decorated


def _annotation(option: Option) -> Any:
    if option.name in _SHARED:
        return _SHARED[option.name]
    words = option.flags.split()
    flags = [w for w in words if not w.startswith("--")], [w for w in words if w.startswith("--")]
    described = typer.Option(
        *flags[0], option.flag, *flags[1], help=option.help or None, rich_help_panel=option.panel or None
    )
    return Annotated[option.kind, described]


def settings_of(values: Mapping[str, Any], **more: Any) -> "Settings":
    """Return the Settings of a command's values. more: fields that are no option as they are"""
    from refsd.pipelines.options import fields
    from refsd.pipelines.settings import Settings

    clip_skip = values["clip_skip"]
    return Settings(**{**fields("Settings", values), "clip_skip": clip_skip if clip_skip > 0 else None, **more})


def image_files(values: Mapping[str, Any]) -> dict[str, Path]:
    """Return flag -> file for the pictures that were given; of several to edit, the first."""
    given = {_BY_NAME[name].flag: values.get(name) for name in _FILES}
    return {flag: file[0] if isinstance(file, list) else file for flag, file in given.items() if file}
