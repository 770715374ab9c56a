"""What the README shows is what happens: its commands and its Python run, and its outputs are theirs.

`python tests/test_readme.py` writes the outputs of its commands into the README anew.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer

import pyrocrowd
from pyrocrowd import zoo
from pyrocrowd.data.sets import digits

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STAND_INS = {"make demo": "pyrocrowd demo"}  # what a command comes down to once everything is set up
NOT_RUN = ("make", "pip")  # the others of these set up the environment that the tests are already in
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
SECONDS = re.compile(r"\d+\.\d s\b")
TINY = {"em": {"max_iter": 2}, "map": {"steps": 2}, "svi": {"steps": 2, "draws": 2}, "nuts": {"draws": 4, "warmup": 2}}


def blocks(kind, text=README):
    return [body for language, body in FENCE.findall(text) if language == kind]


def commands(block):
    """The commands of a shell block that can be run here, each as it is run."""
    lines = [STAND_INS.get(line, line) for line in block.splitlines()]
    return [line for line in lines if not line.startswith(NOT_RUN)]


def run(command, folder) -> str:
    words = shlex.split(command)
    assert words[0] == "pyrocrowd", f"the README runs {words[0]}, which this test does not know"
    surroundings = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=surroundings | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def run_python(folder):
    """The README's Python, in order and in one namespace; a block that begins with a file's name is also that file."""
    before, names = Path.cwd(), {}
    os.chdir(folder)
    try:
        for block in blocks("python"):
            file = re.match(r"# (\w+\.py)\n", block)
            if file:
                Path(file[1]).write_text(block, encoding="utf-8")
            exec(compile(block, file[1] if file else "README.md", "exec"), names)
    finally:
        os.chdir(before)
    return names


def run_shell(folder) -> dict:
    """What each command of the README printed."""
    return {command: run(command, folder) for block in blocks("sh") for command in commands(block)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def names(folder):
    return run_python(folder)


@pytest.fixture(scope="module")
def printed(folder, names):
    return run_shell(folder)


def test_the_python_blocks_run_and_give_what_the_text_says(names):
    assert list(names["labels"].columns[:3]) == ["item", "label", "confidence"]
    assert list(names["annotators"].columns[:5]) == ["annotator", "n_labels", "skill", "skill_low", "skill_high"]
    assert names["again"].labels().equals(names["labels"])
    assert names["ada"].shape[-2:] == (10, 10)


def test_the_commands_run_and_leave_the_files_that_the_table_names(folder, printed):
    rows = table_after("## What a run leaves")
    left = {file.name for run in ("one-coin-run", "conal-run") for file in (folder / run).iterdir()}
    assert {row["file"].strip("`") for row in rows} == left
    assert (folder / "run" / "labels.csv").read_text().startswith("item,label,confidence,")
    assert (folder / "run" / "annotators.csv").read_text().startswith("annotator,n_labels,skill,skill_low,skill_high,")
    assert (folder / "labels-again.csv").read_text() == (folder / "one-coin-run" / "labels.csv").read_text()


def test_the_outputs_shown_are_those_of_a_run(printed):
    shown = outputs_shown()
    assert len(shown) == len(blocks("text")) >= 2
    for command, text in shown.items():
        assert same_output(text, printed[command]), (
            f"{command} prints something else now; python tests/test_readme.py renews the README:\n{printed[command]}"
        )


def test_outputs_differ_when_a_word_or_a_number_does():
    assert same_output("ada 0.78 in 3.5 s\n", "ada  0.785 in 8.1 s\n")
    assert not same_output("ada 0.78\n", "ben 0.78\n")
    assert not same_output("ada 0.78\n", "ada 0.84\n")
    assert not same_output("ada 0.78\n", "ada 0.78\nben 0.78\n")
    assert not same_output("ada 0.78\nben 0.60\n", "ada 0.60\nben 0.78\n")


def test_the_table_of_models_is_the_zoo():
    rows = table_after("## Models")
    assert [row["name"].strip("`") for row in rows] == zoo.names()
    listed = {row["name"]: row for row in json.loads(run("pyrocrowd models --json", ROOT))}
    for row in rows:
        name = row["name"].strip("`")
        assert (row["needs"], row["engines"]) == (listed[name]["needs"], ", ".join(listed[name]["engines"]))
        assert set(re.findall(r"\[doi:(.+?)\]", row["paper"])) == set(
            re.findall(r"doi:(\S+?)[,.;]*\s", zoo.find(name).page)[:1]
        )


@pytest.mark.parametrize("engine", TINY)
@pytest.mark.parametrize("name", zoo.names())
def test_the_table_of_models_names_exactly_the_engines_that_work(name, engine):
    (row,) = [row for row in table_after("## Models") if row["name"].strip("`") == name]
    crowd, settings = digits(items=20).crowd, getattr(pyrocrowd, engine.upper())(**TINY[engine])
    if engine in row["engines"].split(", "):
        assert pyrocrowd.fit(name, crowd, settings).truth.shape == (20, 10)
    else:
        with pytest.raises(pyrocrowd.PyrocrowdError):
            pyrocrowd.fit(name, crowd, settings)


def test_every_flag_that_the_text_mentions_exists():
    from pyrocrowd.cli import app

    verbs = typer.main.get_command(app).commands
    simulators = [verbs["simulate"].get_command(None, name) for name in verbs["simulate"].list_commands(None)]
    known = {flag for verb in [*verbs.values(), *simulators] for one in verb.params for flag in one.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) <= known


def test_every_file_that_the_text_links_to_exists():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links and all((ROOT / link).exists() for link in links)


def test_every_target_that_the_text_names_is_in_the_makefile():
    targets = re.findall(r"^make (\w+)$", README, re.M)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["demo"]
    assert re.search(r"^demo:.*\n\t@\$\(BIN\)/pyrocrowd demo$", makefile, re.M)


def outputs_shown(text=README) -> dict:
    """Command -> the text block that follows it: the output of the first command of the shell block above."""
    found, command = {}, None
    for language, body in FENCE.findall(text):
        if language == "sh":
            command = commands(body)[0]
        elif language == "text":
            found[command] = body
    return found


def same_output(shown, printed) -> bool:
    """Equal up to spaces, seconds, the order of the rows and the last digit of a number.

    Skills that are next to equal may change places, and last digits may depend on the processor.
    """
    shown, printed = (_rows(text) for text in (shown, printed))
    if [NUMBER.sub("#", row) for row in shown] != [NUMBER.sub("#", row) for row in printed]:
        return False
    numbers = (NUMBER.findall(" ".join(rows)) for rows in (shown, printed))
    return all(_close(one, other) for one, other in zip(*numbers, strict=True))


def _rows(text) -> list[str]:
    rows = [" ".join(SECONDS.sub("s", line).split()) for line in text.splitlines()]
    return sorted((row for row in rows if row), key=lambda row: NUMBER.sub("#", row))


def _close(one, other) -> bool:
    if "." not in one and "." not in other:
        return abs(int(one.replace(",", "")) - int(other.replace(",", ""))) <= 1
    one, other = (float(text.replace(",", "")) for text in (one, other))
    return abs(one - other) <= max(0.011, 1e-3 * abs(one))


def table_after(heading) -> list[dict]:
    """The rows of the first table below a heading."""
    lines = [line for line in README.split(heading)[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def _renew():
    with tempfile.TemporaryDirectory() as folder:
        run_python(folder)
        printed = run_shell(folder)
    fresh = README
    for text, command in zip(blocks("text"), outputs_shown(), strict=True):
        fresh = fresh.replace(f"```text\n{text}```", f"```text\n{printed[command]}```", 1)
    (ROOT / "README.md").write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    _renew()
