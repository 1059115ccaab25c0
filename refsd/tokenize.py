"""What `refsd tokenize` does: a tokenizer, a family's rule, ids."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import typer

from refsd.golden.errors import BadInput
from refsd.tokenizers.clip_bpe import BOS, EOS
from refsd.tokenizers.text_rules import FAMILY, TEXT_RULES, token_rows
from refsd.tokenizers.text_tokenizer import Ends
from refsd.tokenizers.tokenizer_files import open_tokenizer
from refsd.tokenizers.vocabulary import find_tokenizer

CLIP = "clip", "clip_g"


class Request(NamedTuple):
    """The command line of `refsd tokenize`."""

    model: Path | None
    tokenizer: Path | None
    component: str
    prompts: list[str]
    family: str | None
    like: str
    length: int | None
    output: Path | None
    json: bool


def run(request: Request) -> None:
    """Raises BadInput, in one line, before anything is written."""
    if request.component not in FAMILY:
        raise BadInput(f"--component {request.component}: expected one of {', '.join(FAMILY)}")
    family = request.family or FAMILY[request.component]
    rule = TEXT_RULES.get((family, request.component, request.like))
    if rule is None:
        known = [f"--family {f} --like {e}" for f, c, e in TEXT_RULES if c == request.component]
        raise BadInput(
            f"--family {family} --like {request.like}: no rule for {request.component}; it has {', '.join(known)}"
        )
    if request.length is not None:
        rule = rule._replace(length=request.length)
    encode, ends, source = _tokenizer(request)
    ids, mask = token_rows(encode, ends, request.prompts, rule, source)
    tensors = {"input_ids": ids} | ({"attention_mask": mask} if rule.mask else {})
    told = {"component": request.component, "family": family, "like": request.like, "tokenizer": source}
    if request.output is not None:
        _write(request.output, tensors, told)
    if request.json:
        values = {name: tensor.tolist() for name, tensor in tensors.items()}
        typer.echo(json.dumps(told | {"lengths": mask.sum(axis=1).tolist()} | values))
        return
    typer.echo(f"{request.component} of {family}, as {request.like}: {source}")
    for row, seen in zip(ids, mask, strict=True):
        typer.echo(f"{seen.sum()} of {len(row)}: {' '.join(map(str, row[seen != 0]))}")


def _tokenizer(request: Request):
    if request.component in CLIP:
        found = find_tokenizer(request.tokenizer, request.model)
        return found.encode, Ends(BOS, EOS, EOS), found.source
    path = request.tokenizer or request.model
    if path is None:
        raise BadInput(f"--component {request.component}: give a model that carries its tokenizer, or --tokenizer")
    tokenizer = open_tokenizer(path, request.component)
    return tokenizer.encode, tokenizer.ends, tokenizer.source


def _write(path: Path, tensors: dict[str, np.ndarray], told: dict[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(tensors, path, told)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{path}: cannot be written: {error}") from None
