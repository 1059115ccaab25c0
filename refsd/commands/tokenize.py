"""Run `refsd tokenize`: open a tokenizer, apply a family's text rule, print or write the ids."""

import json
from pathlib import Path
from typing import NamedTuple

import typer

from refsd.components import ALIASES
from refsd.conventions import OF_ALL_MODELS
from refsd.families import FAMILIES
from refsd.files.tensor_files import check_name, write_arrays
from refsd.golden.output_file import Outputs
from refsd.numerics.errors import BadInput
from refsd.tokenizers.clip_bpe import BOS, EOS
from refsd.tokenizers.text_rules import token_rows
from refsd.tokenizers.text_tokenizer import Ends
from refsd.tokenizers.tokenizer_files import open_tokenizer
from refsd.tokenizers.vocabulary import find_tokenizer

CLIP = "clip", "clip_g"
# Text encoder -> default of --family: the first that cannot do without it.
DEFAULT_FAMILY = {
    component: family.name
    for family in reversed(FAMILIES.values())
    for component, encoder in family.encoders.items()
    if not encoder.optional
}


class Options(NamedTuple):
    """Command-line arguments of `refsd tokenize`."""

    model: Path | None
    tokenizer: Path | None
    component: str
    prompts: list[str]
    family: str | None
    like: str
    length: int | None
    output: Path | None
    json: bool


def run(options: Options) -> None:
    """Tokenize the prompts and print or write the ids. Raises BadInput, in one line, before writing anything."""
    options = options._replace(component=_encoder(options))
    family = options.family or DEFAULT_FAMILY[options.component]
    users = {name: of for name, of in FAMILIES.items() if options.component in of.encoders}
    if family not in users or options.like not in OF_ALL_MODELS:
        known = [f"--family {name} --like {like}" for name in users for like in OF_ALL_MODELS]
        raise BadInput(
            f"--family {family} --like {options.like}: no rule for {options.component}; it has {', '.join(known)}"
        )
    rule = OF_ALL_MODELS[options.like].row(users[family].encoders[options.component].rules)
    if options.length is not None:
        rule = rule._replace(length=options.length)
    encode, ends, source = _tokenizer(options)
    ids, mask = token_rows(encode, ends, options.prompts, rule, source)
    tensors = {"input_ids": ids} | ({"attention_mask": mask} if rule.mask else {})
    record = {"component": options.component, "family": family, "like": options.like, "tokenizer": source}
    if options.output is not None:
        check_name(options.output, tensors)
        Outputs().add("--output", options.output)
        write_arrays(options.output, tensors, {"tool": "refsd tokenize"} | record)
    if options.json:
        values = {name: tensor.tolist() for name, tensor in tensors.items()}
        typer.echo(json.dumps(record | {"lengths": mask.sum(axis=1).tolist()} | values))
        return
    typer.echo(f"{options.component} of {family}, as {options.like}: {source}")
    for row, seen in zip(ids, mask, strict=True):
        typer.echo(f"{seen.sum()} of {len(row)}: {' '.join(map(str, row[seen != 0]))}")


def _encoder(options: Options) -> str:
    """Return the text encoder that a name or an alias of `refsd forward` stands for. Raises BadInput."""
    names = [name for name in ALIASES.get(options.component, (options.component,)) if name in DEFAULT_FAMILY]
    if len(names) > 1 and options.family in FAMILIES:
        names = [name for name in names if name in FAMILIES[options.family].encoders]
    if len(names) == 1:
        return names[0]
    if names:
        raise BadInput(f"--component {options.component} is {' or '.join(names)}: name one of them, or a --family")
    known = ", ".join([*DEFAULT_FAMILY, *(alias for alias, of in ALIASES.items() if DEFAULT_FAMILY.keys() & {*of})])
    raise BadInput(f"--component {options.component}: expected one of {known}")


def _tokenizer(options: Options):
    if options.component in CLIP:
        clip = find_tokenizer(options.tokenizer, options.model)
        return clip.encode, Ends(BOS, EOS, EOS), clip.source
    path = options.tokenizer or options.model
    if path is None:
        raise BadInput(f"--component {options.component}: give a model that carries its tokenizer, or --tokenizer")
    tokenizer = open_tokenizer(path, options.component)
    return tokenizer.encode, tokenizer.ends, tokenizer.source
