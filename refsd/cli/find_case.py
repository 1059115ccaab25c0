"""The case that a name or a path means, and the names that a shell completes."""

from pathlib import Path

from refsd.golden.wording import did_you_mean


def complete_case(incomplete: str) -> list[str]:
    """Return the names of cases that begin so, for the shell."""
    from refsd import cases as corpus

    return [name for name in corpus.CASES if name.startswith(incomplete)]


def unknown_case(name: str | None, known: list[str]) -> str:
    """Return the message for a name that is none of `known`, or for no name at all."""
    if name is None:
        return "name a case or an operation: `refsd golden list` shows the cases"
    if any(sign in name for sign in "*?["):
        return f"{name!r} is a glob, and one case is shown: list the cases by `refsd golden list --cases '{name}'`"
    if any(case.startswith(f"{name}/") for case in known):
        return f"{name!r} is the beginning of cases' names: list them by `refsd golden list --cases '{name}/*'`"
    from refsd.cases import meant

    like = meant(name) if "/" not in name else did_you_mean(name, known)
    return f"no case and no operation {name!r}{like}: `refsd golden list` shows the cases"


def find_case(text: str):
    """A case of the corpus or a random one by its name, or that of a folder of `refsd shrink`. Raises BadInput."""
    from refsd import cases as corpus
    from refsd.fuzzing.fuzz import drawn_case
    from refsd.numerics.errors import BadInput
    from refsd.requests.random_case import parse
    from refsd.shrinking import folder

    if text in corpus.CASES:
        return corpus.CASES[text]
    random = parse(text)
    if random is not None:
        return drawn_case(*random)
    path = Path(text)
    if path.name == folder.CASE:
        path = path.parent
    if path.is_dir():
        return folder.read(path)
    meant = did_you_mean(text, corpus.CASES)
    raise BadInput(f"no case {text!r}{meant}, nor a folder of `refsd shrink`: `refsd golden list` shows the cases")
