"""The list of commands: their modules are imported when a command is run, and not to print `refsd --help`."""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping

import typer
from typer.core import HAS_RICH, TyperCommand, TyperGroup

# The beginning of what Rich takes for a tag.
_TAG = re.compile(r"\[(?=[a-z#/@])")
_HINTS = (  # words of an error that Typer tells -> what to write instead
    ("extra argument", ": for several values repeat the option: --ops linear --ops silu"),
    ("option: --ops", ": an operation's cases are asked by --cases 'linear/*' --cases 'silu/*'"),
)
_CHOICE = re.compile(r"'([^']*)' is not one of '(.*)'")

# Panel of --help -> command -> the first paragraph of its help. The command verify-submission is in
# verify_submission.py: the function verify_submission, or a Typer of that name where it has subcommands. A class
# Command there replaces Typer's.
PANELS: dict[str, dict[str, str]] = {
    "Judge an engine": {
        "conform": "Judge engines on every case, each under the numerics that it declares.",
        "compare": "Judge a dump against a golden, as `refsd conform` judges an engine.",
        "adopt": "Make a case of a model that has no page: docs/adopt.md.",
        "golden": "Make, list, show, verify and pack reference answers.",
        "export": "Write cases as files: inputs, weights, parameters, the float64 answer, and the bound "
        "under --numerics.",
        "fuzz": "Ask an engine random cases of every operation that it has; reduce what it fails.",
        "shrink": "Reduce a failing case to the smallest that an engine still fails in the same way.",
        "profile": "Tell an engine's numerics by designed inputs, without believing what it declares.",
    },
    "Compare two": {
        "disagree": "Find out which of two engines is right, how far apart they are, where they begin to "
        "differ, and why.",
        "admit": "Say in one line, to paste into a pull request, whether an engine may take another's place.",
        "diff": "Show what changed from one conformance report, or one weight file, to another.",
    },
    "Examine a file": {
        "info": "Identify a file and say whether it is healthy; the culprit comes in the first line.",
        "range": "Show the largest value of each layer's output, and of its product before the bias, "
        "against 65504.",
        "quality": "Show what each storage type costs: error of the output, drift of a sampling run, the "
        "costliest layers.",
        "dequant": "Dequantize a GGUF file, bit for bit as gguf-py does.",
    },
    "Run the reference": {
        "txt2img": "Make a picture from a prompt with a model's weights.",
        "forward": "Run one component of a model once on the tensors of a file.",
        "tokenize": "Turn a prompt into token ids, with the start, end and padding tokens that the family's "
        "text encoder expects.",
        "sigmas": "Print the sigmas of an engine's schedule, and the timestep that the network receives at each.",
        "noise": "Draw the initial noise of an engine: print the first numbers and a hash, or write it to a file.",
        "run-onnx": "Evaluate an ONNX graph in float64: the truth of a graph that another tool wrote.",
        "weights": "Make the weights of a model from a recipe.",
    },
    "Publish": {
        "corpus": "List the versions of the corpus and their profiles: the cases that an engine must pass "
        "to claim one.",
        "badge": "Draw a badge: the profile, and whether the engine meets it. It loads nothing from the network.",
        "verify-submission": "Verify a submission: give every verdict again from its metrics, and hold these "
        "against the truth.",
        "scoreboard": "Show reports as a board: engines, versions and devices against operations, with a page "
        "for each run.",
    },
    "Set up": {
        "engines": "List the engines: their versions and devices, and how to get those that are missing.",
        "doctor": "Examine the installation: versions, processor, threads, BLAS, engines, caches.",
        "cache": "Show or clear the caches: compiled kernels, recipe weights of large models, answers for "
        "the Python API. $REFSD_CACHE moves them, but for the kernels, which $NUMBA_CACHE_DIR "
        "moves.",
        "bench": "Time refsd in float32 against its peers: interleaved runs, each contender in its own process.",
    },
}
SUMMARIES = {name: text for commands in PANELS.values() for name, text in commands.items()}

# Command -> a line to begin with, at the end of its help; a test runs each.
EXAMPLES = {
    "conform": "refsd conform exec:./engine --cases 'softmax/*'",
    "compare": "refsd compare dump.safetensors softmax/f32/plain-x33x77",
    "adopt": "refsd adopt model.onnx -i inputs.safetensors -o mine",
    "golden": "refsd golden show softmax --mutants",
    "export": "refsd export 'softmax/f32/*' -o cases --format bin",
    "fuzz": "refsd fuzz exec:./engine --ops softmax --minutes 5",
    "shrink": "refsd shrink exec:./engine softmax/f32/plain-x33x77 -o smallest",
    "profile": "refsd profile exec:./engine",
    "disagree": "refsd disagree refsd exec:./engine 'softmax/*'",
    "admit": "refsd admit exec:./engine exec:./newer --cases 'softmax/*'",
    "diff": "refsd diff model.safetensors other.gguf",
    "info": "refsd info model.safetensors",
    "range": "refsd range model.safetensors --steps 2",
    "quality": "refsd quality model.safetensors --types q8_0,q4_k",
    "dequant": "refsd dequant other.gguf -o plain.safetensors",
    "txt2img": "refsd txt2img -m model.safetensors -p 'a lovely cat' -o cat.png",
    "forward": "refsd forward model.safetensors --component vae-decoder -i in.safetensors -o y.npz",
    "tokenize": "refsd tokenize model.safetensors --component clip -p 'a lovely cat' -o ids.npy",
    "sigmas": "refsd sigmas --like comfyui --scheduler karras --steps 20",
    "noise": "refsd noise --like sdcpp --seed 42",
    "run-onnx": "refsd run-onnx model.onnx -i inputs.safetensors -o truth.safetensors",
    "weights": "refsd weights make sd15 --tiny -o tiny.safetensors",
    "corpus": "refsd corpus 2026.11/sd15",
    "badge": "refsd badge refsd-report/conform.json -o badge.svg",
    "verify-submission": "refsd verify-submission mine.zip",
    "scoreboard": "refsd scoreboard reports -o site",
    "engines": "refsd engines",
    "doctor": "refsd doctor",
    "cache": "refsd cache",
    "bench": "refsd bench kernels --only 'attention/*'",
}


class _Commands(Mapping):
    """The commands by name. Reading one imports its module."""

    def __init__(self):
        self._read = {}

    def __getitem__(self, name: str):
        if name not in SUMMARIES:
            raise KeyError(name)
        if name not in self._read:
            alone, word = typer.Typer(), name.replace("-", "_")
            module = importlib.import_module(f"refsd.cli.{word}")
            found = getattr(module, word)
            if isinstance(found, typer.Typer):
                alone.add_typer(found, name=name)
            else:
                alone.command(name, cls=getattr(module, "Command", None))(found)
            command = self._read[name] = typer.main.get_group(alone).commands[name]
            command.help = f"{command.help}\n\nExample: {EXAMPLES[name]}"
            if HAS_RICH:
                _for_rich(command)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


def _for_rich(command) -> None:
    """Make a command's help fit any width: a paragraph is one line, but for indented ones.

    "refsd[dask]" and "torch[@DEVICE]" stay, which Rich would read as its own tags.
    """
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(p if p.startswith(" ") else " ".join(p.split()) for p in paragraphs)
    for one in (command, *command.params):
        if getattr(one, "help", None):
            one.help = _TAG.sub(r"\\[", one.help)
    for below in getattr(command, "commands", {}).values():
        _for_rich(below)


class Listing(TyperGroup):
    """The group of all commands. It imports the module of the one that is run; its own help imports none."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.commands = _Commands()

    def list_commands(self, ctx) -> list[str]:
        return list(SUMMARIES)

    def invoke(self, ctx):
        """Run a command; a choice that there is not is refused with the one that was probably meant."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            match = _CHOICE.search(error.message)
            if match is not None:
                from refsd.golden.wording import did_you_mean

                error.message = error.message.rstrip(".") + did_you_mean(match[1], match[2].split("', '"))
            raise
        except typer.BadParameter.__base__ as error:  # type: ignore[misc]  # every other error of usage
            for words, hint in _HINTS:
                if words in error.message:
                    error.message, error.possibilities = error.message + hint, []
            raise

    def format_help(self, ctx, formatter) -> None:
        commands = self.commands
        self.commands = {
            name: TyperCommand(name, help=text, rich_help_panel=panel)
            for panel, listed in PANELS.items()
            for name, text in listed.items()
        }
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = commands
