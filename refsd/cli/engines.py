"""Find engines by their names on the command line."""

from pathlib import Path

from refsd.golden.wording import did_you_mean


def reference_engine(profile: str):
    """Make the reference under a numerics profile an engine, to be judged against float64. Raises BadInput."""
    from refsd.engines.reference import Reference
    from refsd.model_files import model_files
    from refsd.numerics.errors import BadInput
    from refsd.numerics.profiles import PROFILES

    if profile not in PROFILES:
        meant = did_you_mean(profile, PROFILES)
        raise BadInput(f"refsd:{profile}: no such numerics profile{meant}; there are {', '.join(PROFILES)}")
    engine = Reference(PROFILES[profile], model_files=model_files)
    engine.name = f"refsd-{profile}"
    return engine


def one_engine(argument: str, **options):
    """Find a single engine: "torch" is the first engine of torch, "torch-bf16" the engine of that name.

    options: for the engine's `find`: timeout, seconds that an answer may take

    Raises BadInput if it is missing.
    """
    from refsd.engines import registry
    from refsd.golden.input_file import note_input
    from refsd.model_files import model_files
    from refsd.numerics.errors import BadInput

    name, colon, path = argument.partition(":")
    if name == "refsd":
        return reference_engine(path or "float32")
    kind = next((known for known in registry.FOLDERS if name.startswith(f"{known}-")), name)
    kind = name if name in registry.FOLDERS else kind
    if path:
        note_input(Path(path))
    looked = registry.find(f"{kind}{colon}{path}", model_files=model_files, **options)
    found = [one.engine for one in looked if one.engine is not None]
    if not found:
        raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why_not for one in looked)}")
    chosen = [engine for engine in found if engine.name == name] if kind != name else found
    if not chosen:
        raise BadInput(f"{argument}: {kind} gives {', '.join(engine.name for engine in found)}")
    return chosen[0]
