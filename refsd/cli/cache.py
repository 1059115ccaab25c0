"""refsd cache: show and clear what refsd keeps from run to run."""

import typer

_JSON = typer.Option(False, "--json", help="Print JSON.")
_CACHES = typer.Argument(None, metavar="[CACHE]...", help="models, goldens, fetched, kernels, taps. None: all.")


def register(app: typer.Typer) -> None:
    cache = typer.Typer(
        invoke_without_command=True,
        help="Show or clear the caches: compiled kernels, recipe weights of large models, answers for the "
        "Python API. $REFSD_CACHE moves them, but for the kernels, which $NUMBA_CACHE_DIR moves.",
    )
    cache.callback()(show)
    cache.command()(clear)
    app.add_typer(cache, name="cache")


def show(context: typer.Context, json: bool = _JSON) -> None:
    """List each cache: its size, its folder and its content."""
    if context.invoked_subcommand is not None:
        return
    from refsd.commands.caches import CACHES, size

    rows = []
    for name, cache in CACHES.items():
        owned = {path.name: size(path) for path in cache.owned()}
        place = cache.place()
        rows.append({"name": name, "what": cache.what, "path": str(place) if place else None, "entries": owned})
    if json:
        _print_json(rows)
        return
    for row in rows:
        total = sum(row["entries"].values())
        typer.echo(f"{row['name']:8} {total / 1e6:9.1f} MB  {row['what']}: {row['path'] or 'nowhere'}")
        for entry, nbytes in row["entries"].items():
            typer.echo(f"{'':8} {nbytes / 1e6:9.1f} MB    {entry}")


def clear(caches: list[str] = _CACHES, json: bool = _JSON) -> None:
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
        _print_json({"freed": freed})
        return
    for name, nbytes in freed.items():
        typer.echo(f"{name:8} {nbytes / 1e6:9.1f} MB freed")


def _print_json(what) -> None:
    import json

    typer.echo(json.dumps(what, indent=1))
