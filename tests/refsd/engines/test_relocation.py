import os

import pytest

from refsd.engines.relocation import command, environment


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a program, files and folders in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("engine", "engine.py", "my file", "a=b"):
        (tmp_path / name).write_text("")
    (tmp_path / "engine").chmod(0o755)
    for name in ("run", "lib", "bin"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("./engine", ["{here}/engine"]),
        ("bin/../engine --fast", ["{here}/engine", "--fast"]),
        ("./engine engine.py", ["{here}/engine", "{here}/engine.py"]),
        ("./engine 'my file'", ["{here}/engine", "{here}/my file"]),
        (
            "./engine --script=engine.py --lib=./lib",
            ["{here}/engine", "--script={here}/engine.py", "--lib={here}/lib"],
        ),
        ("./engine a=b", ["{here}/engine", "{here}/a=b"]),
        ("./engine lib/ . ..", ["{here}/engine", "{here}/lib", "{here}", "{above}"]),
        # A folder is often a subcommand's name.
        (
            "./engine run --lib=lib nowhere.py ./nowhere",
            ["{here}/engine", "run", "--lib=lib", "nowhere.py", "./nowhere"],
        ),
        ("./engine ''", ["{here}/engine", ""]),
        ("./engine .:lib:my", ["{here}/engine", "{here}:{here}/lib:my"]),
        ("./engine --path=engine.py:lib", ["{here}/engine", "--path={here}/engine.py:{here}/lib"]),
        ("./engine run:lib a:b", ["{here}/engine", "run:lib", "a:b"]),
        ("/bin/sh engine.py", ["/bin/sh", "{here}/engine.py"]),
        ("./nowhere", ["{here}/nowhere"]),
        ("no-such-program-anywhere", ["no-such-program-anywhere"]),
    ],
)
def test_files_become_absolute_and_other_words_stay(place, text, words):
    assert command(text) == [word.format(here=place, above=place.parent) for word in words]


def test_a_program_is_looked_for_on_the_path(place, monkeypatch):
    monkeypatch.setenv("PATH", ".")
    assert command("engine engine.py") == [f"{place}/engine", f"{place}/engine.py"]
    assert command("env") == ["env"]


@pytest.mark.parametrize("text", ["", "  ", "'./engine"])
def test_no_command(text):
    with pytest.raises(ValueError, match=r"no program|closing quotation"):
        command(text)


def test_the_environment_keeps_what_a_program_needs(place, monkeypatch):
    needed = {
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "1",
        "PATH": f"/usr/bin:./bin:{place}/lib",
        "LD_LIBRARY_PATH": "lib:/opt/lib::nowhere",
        "MY_ENGINE_SETTING": "lib",
    }
    told = {
        "PWD": str(place),
        "OLDPWD": str(place),
        "_": "/usr/bin/env",
        "REFSD_CACHE": str(place),
        "REFSD_ANY": "1",
    }
    for name, value in (needed | told).items():
        monkeypatch.setenv(name, value)
    given = environment()
    assert not given.keys() & told.keys()
    assert given == {k: v for k, v in os.environ.items() if k not in told} | {
        "PATH": f"/usr/bin:{place}/bin:{place}/lib",
        "LD_LIBRARY_PATH": f"{place}/lib:/opt/lib::nowhere",
    }
