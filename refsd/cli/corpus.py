"""refsd corpus: the versioned cases, and the profiles that an engine can be held to."""

from pathlib import Path

import typer

_MAKE = typer.Option(None, "--make", help="Make the manifest of a new version, as 2026.12, from the present cases.")
_OUT = typer.Option(None, "--out", "-o", help="File for the manifest of --make.")
_JSON = typer.Option(False, "--json", help="Print JSON: version, digest of the cases and of the rules, profiles.")
_NAME = typer.Argument(None, metavar="[PROFILE]", help="List the cases of one profile, as 2026.11/sd15.")


def corpus(profile: str = _NAME, make: str = _MAKE, out: Path = _OUT, json: bool = _JSON) -> None:
    """List the versions of the corpus and their profiles: the cases that an engine must pass to claim one.

    `refsd conform ENGINE --profile 2026.11/sd15` runs one and says whether it is met. A case of a published version
    never changes; cases that are added belong to the next version.
    """
    import msgspec

    from refsd.corpus import rules
    from refsd.corpus.profiles import PROFILES
    from refsd.corpus.versions import VERSION, encode, present, profile_cases, published, versions
    from refsd.golden.output_file import write_file
    from refsd.golden.wording import counted
    from refsd.numerics.errors import BadInput

    if make is not None:
        if out is None:
            raise BadInput("--make needs --out FILE")
        made = present(make)
        write_file(out, encode(made))
        typer.echo(f"{out}: corpus {make}, {counted(len(made.cases), 'case')}, sha256 {made.digest}")
        return
    if profile is not None:
        names = [case.name for case in profile_cases(profile)]
        typer.echo(msgspec.json.encode(names).decode() if json else "\n".join(names))
        return
    known = {version: published(version) for version in versions()}
    if json:
        rows = [
            {"version": v, "cases": len(c.cases), "sha256": c.digest, "profiles": {p: c.of(p) for p in PROFILES}}
            for v, c in known.items()
        ]
        typer.echo(msgspec.json.encode({"rules": rules.digest(), "versions": rows}).decode())
        return
    for version, of in known.items():
        present_one = ", the present one" if version == VERSION else ""
        typer.echo(f"{version}: {counted(len(of.cases), 'case')}, sha256 {of.digest[:16]}{present_one}")
        for name, page in PROFILES.items():
            typer.echo(f"  {f'{version}/{name}':<18} {len(of.of(name)):>4} cases  {page.what}")
    typer.echo(f"rules of verdicts: sha256 {rules.digest()[:16]}")
