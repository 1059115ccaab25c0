"""What `refsd tokenize` does: a tokenizer, a family's rule, ids."""

import json
from pathlib import Path
from typing import NamedTuple

import typer

from refsd.families import FAMILIES
from refsd.golden.output_file import Outputs
from refsd.numerics.errors import BadInput
from refsd.tokenizers.clip_bpe import BOS, EOS
from refsd.tokenizers.text_rules import token_rows
from refsd.tokenizers.text_tokenizer import Ends
from refsd.tokenizers.tokenizer_files import open_tokenizer
from refsd.tokenizers.vocabulary import find_tokenizer
from refsd.weights.tensor_files import check_name, write_arrays

CLIP = "clip", "clip_g"
# Text encoder -> the family whose rule it follows where none is named.
USUAL_FAMILY = {"clip": "sd1", "clip_g": "sdxl", "t5": "flux", "qwen3": "zimage", "mistral": "flux2-dev"}


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
    if request.component not in USUAL_FAMILY:
        raise BadInput(f"--component {request.component}: expected one of {', '.join(USUAL_FAMILY)}")
    family = request.family or USUAL_FAMILY[request.component]
    readers = {
        name: of.encoders[request.component] for name, of in FAMILIES.items() if request.component in of.encoders
    }
    rule = readers[family].rules.get(request.like) if family in readers else None
    if rule is None:
        known = [f"--family {name} --like {engine}" for name, reader in readers.items() for engine in reader.rules]
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
        check_name(request.output, tensors)
        Outputs().add("--output", request.output)
        write_arrays(request.output, tensors, told)
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
