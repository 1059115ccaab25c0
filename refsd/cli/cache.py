"""refsd cache: show and clear what refsd keeps from run to run."""

import typer

from refsd.cli.json_output import JSON, print_json

_CACHES = typer.Argument(None, metavar="[CACHE]...", help="models, goldens, fetched, kernels, taps. None: all.")


cache = typer.Typer(
    invoke_without_command=True,
    help="Show or clear the caches: compiled kernels, recipe weights of large models, answers for the "
    "Python API. $REFSD_CACHE moves them, but for the kernels, which $NUMBA_CACHE_DIR moves.",
)


@cache.callback()
def show(context: typer.Context, json: bool = JSON) -> None:
    """List each cache: its size, its folder and its content."""
    if context.invoked_subcommand is not None:
        return
    from refsd.commands.caches import CACHES, size

    rows = []
    for name, one in CACHES.items():
        owned = {path.name: size(path) for path in one.owned()}
        place = one.place()
        rows.append({"name": name, "what": one.what, "path": str(place) if place else None, "entries": owned})
    if json:
        print_json(rows)
        return
    for row in rows:
        total = sum(row["entries"].values())
        typer.echo(f"{row['name']:8} {total / 1e6:9.1f} MB  {row['what']}: {row['path'] or 'nowhere'}")
        for entry, nbytes in row["entries"].items():
            typer.echo(f"{'':8} {nbytes / 1e6:9.1f} MB    {entry}")


@cache.command()
def clear(caches: list[str] = _CACHES, json: bool = JSON) -> None:
    """Delete the content of caches. refsd makes it again when needed."""
    from refsd.commands.caches import CACHES
    from refsd.golden.wording import did_you_mean
    from refsd.numerics.errors import BadInput

    unknown = [name for name in caches or () if name not in CACHES]
    if unknown:
        meant = did_you_mean(unknown[0], CACHES)
        raise BadInput(f"no cache {unknown[0]!r}{meant}; there are {', '.join(CACHES)}")
    freed = {name: CACHES[name].clear() for name in caches or CACHES}
    if json:
        print_json({"freed": freed})
        return
    for name, nbytes in freed.items():
        typer.echo(f"{name:8} {nbytes / 1e6:9.1f} MB freed")
