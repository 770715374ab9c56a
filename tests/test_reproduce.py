"""A paper's table run again: the figures, what is kept and run again, and how it ends. The experiments are made up."""

import inspect
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from pyrocrowd import PyrocrowdError, PyrocrowdWarning, cli
from pyrocrowd.cli import INTERRUPTED, app
from pyrocrowd.data.sets import VARIABLE, folder_of
from pyrocrowd.reproduce import TABLES, Experiment, Table, conal, later, reproduce

BEST, LAST = ("test accuracy", "best on validation"), ("test accuracy", "last epoch")
KEYS = ["table", "dataset", "method", "metric", "published", "mean", "std", "seeds", "selection"]


class Paper:
    """A made-up paper: two methods on Birds and one on Songs; it counts which seeds ran."""

    def __init__(self):
        self.ran, self.settings, self.events = Counter(), {"epochs": 3}, {}

    def run(self, dataset, method):
        def run(seed):
            self.ran[dataset, method, seed] += 1
            self.events.get((method, seed), lambda: None)()
            return {BEST: 80.0 + 2 * seed, LAST: np.float32(0.5)}

        return run

    def experiments(self):
        published = {"CoNAL": {BEST: "87.12 ± 0.55"}, "DL-MV": {BEST: "79.83 ± 0.34", LAST: None}}
        pairs = ("Birds", "DL-MV"), ("Birds", "CoNAL"), ("Songs", "CoNAL")
        return [Experiment(*pair, self.run(*pair), dict(self.settings), published[pair[1]]) for pair in pairs]

    def seeds_run(self):
        """How many trainings there were since the last time one asked."""
        count = self.ran.total()
        self.ran.clear()
        return count


@pytest.fixture
def paper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paper = Paper()
    register(monkeypatch, "fake", paper.experiments)
    return paper


@pytest.fixture
def call(capsys):
    """Run `pyrocrowd reproduce` in this process; gives what it printed on stdout and on stderr."""

    def call(*words, code=0):
        with pytest.raises(SystemExit) as end:
            app(["reproduce", *map(str, words)])
        printed = capsys.readouterr()
        assert end.value.code == code, printed.err
        return printed

    return call


def register(monkeypatch, name, experiments):
    monkeypatch.setitem(TABLES, name, Table(name, "Made-up figures", "Nobody (2021)", ("birds",), experiments))


def interrupt():
    raise KeyboardInterrupt


def row_of(results, dataset, method, selection=BEST[1]):
    rows = results if isinstance(results, list) else results.rows
    (row,) = [one for one in rows if (one["dataset"], one["method"], one["selection"]) == (dataset, method, selection)]
    return row


def cells(markdown):
    """The lines of a Markdown table, cut at every pipe that is not escaped."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


# -------------------------------------------------------------------- figures


def test_a_row_holds_the_mean_and_the_sample_deviation_over_the_seeds(paper):
    results = reproduce("fake", seeds=4)
    row = row_of(results, "Birds", "CoNAL")
    values = [80, 82, 84, 86]
    assert row["mean"] == pytest.approx(np.mean(values)) and row["std"] == pytest.approx(np.std(values, ddof=1))
    assert row["seeds"] == 4 and row["published"] == "87.12 ± 0.55" and row["table"] == "fake"
    assert set(paper.ran.values()) == {1} and {seed for *_, seed in paper.ran} == {0, 1, 2, 3}


def test_one_training_gives_a_row_for_every_selection(paper):
    results = reproduce("fake", seeds=1)
    assert [(row["dataset"], row["method"], row["selection"]) for row in results.rows] == [
        (*pair, selection)
        for pair in (("Birds", "DL-MV"), ("Birds", "CoNAL"), ("Songs", "CoNAL"))
        for _, selection in (BEST, LAST)
    ]
    assert paper.seeds_run() == 3


def test_one_seed_has_no_deviation(paper):
    results = reproduce("fake", seeds=1)
    assert row_of(results, "Birds", "CoNAL")["std"] is None
    assert cells(results.to_markdown())[2][4] == "80.00 ± -"


def test_there_are_five_seeds_by_default_here_and_on_the_command_line(paper, call):
    assert {row["seeds"] for row in reproduce("fake").rows} == {5}
    here, there = inspect.signature(reproduce).parameters, inspect.signature(cli.reproduce).parameters
    assert here["seeds"].default == there["seeds"].default and here["runs"].default == str(there["runs"].default)


def test_a_figure_that_is_no_number_is_shown_and_never_averaged_away(paper, call, monkeypatch):
    def run(seed):
        return {BEST: math.nan if seed == 1 else 80.0}

    register(monkeypatch, "broken", lambda: [Experiment("Birds", "CoNAL", run)])
    for _ in range(2):  # the second time from the kept seeds
        (row,) = json.loads(call("broken", "--seeds", 3, "--json").out)
        assert row["mean"] is None and row["std"] is None and row["seeds"] == 3
    assert cells(call("broken", "--seeds", 3).out)[2][4] == "nan"


def test_a_published_figure_that_no_run_gives_has_a_row_without_ours(paper, monkeypatch):
    one = Experiment("Birds", "CoNAL", lambda seed: {BEST: 80.0}, {}, {BEST: "81", LAST: "79"})
    register(monkeypatch, "partly", lambda: [one])
    row = row_of(reproduce("partly", seeds=2), "Birds", "CoNAL", LAST[1])
    assert (row["published"], row["mean"], row["seeds"]) == ("79", None, 0)


# -------------------------------------------------------------------- kept seeds


def test_finished_seeds_are_not_run_again_and_more_seeds_run_only_the_new_ones(paper):
    first = reproduce("fake", seeds=2)
    assert paper.seeds_run() == 6
    assert reproduce("fake", seeds=2).rows == first.rows and paper.seeds_run() == 0
    assert row_of(reproduce("fake", seeds=4), "Songs", "CoNAL")["seeds"] == 4
    assert sorted(seed for *_, seed in paper.ran) == [2, 2, 2, 3, 3, 3]
    assert reproduce("fake", seeds=2).rows == first.rows


@pytest.mark.parametrize("change", ["settings", "version", "table"])
def test_another_recipe_version_or_table_uses_no_kept_seed(paper, monkeypatch, change):
    reproduce("fake", seeds=2)
    paper.seeds_run()
    if change == "settings":
        paper.settings["epochs"] = 4
    elif change == "version":
        monkeypatch.setattr("pyrocrowd.__version__", "99")
    else:
        register(monkeypatch, "other", paper.experiments)
    reproduce("other" if change == "table" else "fake", seeds=2)
    assert paper.seeds_run() == 6


def test_settings_with_tuples_and_nests_are_recognised(paper):
    paper.settings = {"rates": (0.1, 0.2), "net": {"width": 128}, "lambda": 1e-5}
    for expected in (3, 0):
        reproduce("fake", seeds=1)
        assert paper.seeds_run() == expected


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"figures"', '"other"'),
        lambda text: text.replace("82.0", '"many"'),
        lambda text: text.replace('"seed": 1', '"seed": 7'),
    ],
)
def test_a_broken_file_is_run_again(paper, tmp_path, damage):
    whole = reproduce("fake", seeds=2, only="DL-MV").rows
    (path,) = tmp_path.glob("reproduce-runs/fake/*/seed-1.json")
    path.write_text(damage(path.read_text()))
    paper.seeds_run()
    assert reproduce("fake", seeds=2, only="DL-MV").rows == whole
    assert paper.ran == {("Birds", "DL-MV", 1): 1}


def test_a_file_that_cannot_be_decoded_is_run_again(paper, tmp_path):
    reproduce("fake", seeds=1, only="DL-MV")
    (path,) = tmp_path.glob("reproduce-runs/fake/*/seed-0.json")
    path.write_bytes(b"\xff\xfe\x00")
    reproduce("fake", seeds=1, only="DL-MV")
    assert paper.seeds_run() == 2


def test_fresh_runs_again_what_was_asked_for_and_nothing_else(paper, call):
    call("fake", "--seeds", 3)
    paper.seeds_run()
    call("fake", "--seeds", 2, "--dataset", "songs", "--fresh")
    assert paper.ran == {("Songs", "CoNAL", 0): 1, ("Songs", "CoNAL", 1): 1}
    paper.seeds_run()
    call("fake", "--seeds", 3)
    assert paper.seeds_run() == 0


def test_the_folder_of_the_seeds_can_be_chosen_and_holds_nothing_else(paper, call, tmp_path):
    call("fake", "--seeds", 2, "--runs", "a/b")
    assert not (tmp_path / "reproduce-runs").exists()
    files = [path for path in (tmp_path / "a" / "b").rglob("*") if path.is_file()]
    assert len(files) == 6 and {path.name for path in files} == {"seed-0.json", "seed-1.json"}
    record = json.loads(files[0].read_text())
    assert record["settings"] == {"epochs": 3} and {"pyrocrowd", "dataset", "method", "seed"} <= set(record)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(paper, call, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file cannot be written" in call("fake", "--runs", "file", code=2).err
    assert paper.seeds_run() == 0


# -------------------------------------------------------------------- interruptions and other ends


def test_ctrl_c_keeps_the_finished_seeds_and_the_same_command_goes_on(paper, call):
    paper.events["DL-MV", 2] = interrupt
    printed = call("fake", code=INTERRUPTED)
    assert "finished seeds are kept in reproduce-runs; the same command goes on from there" in printed.err
    lines = cells(printed.out)[2:]
    assert [line[:2] + line[4:6] for line in lines] == [
        ["Birds", "DL-MV", "81.00 ± 1.41", "2"],
        ["Birds", "DL-MV", "0.5000 ± 0.0000", "2"],
    ]
    paper.events.clear()
    paper.seeds_run()
    assert {line[5] for line in cells(call("fake").out)[2:]} == {"5"}
    assert paper.seeds_run() == 13


def test_ctrl_c_shows_what_earlier_commands_finished_too(paper, call):
    call("fake", "--dataset", "Songs", "--seeds", 1)
    paper.events["DL-MV", 0] = interrupt
    rows = json.loads(call("fake", "--json", code=INTERRUPTED).out)
    assert {(row["dataset"], row["seeds"]) for row in rows} == {("Songs", 1)}


def test_half_a_training_is_not_kept_where_the_engine_swallows_ctrl_c(paper, call):
    def stop_early():  # as `fit` does: it gives what it has learned so far
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    paper.events["DL-MV", 1] = stop_early
    rows = json.loads(call("fake", "--json", code=INTERRUPTED).out)
    assert {row["seeds"] for row in rows} == {1}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    paper.events.clear()
    paper.seeds_run()
    call("fake", "--only", "DL-MV")
    assert sorted(seed for *_, seed in paper.ran) == [1, 2, 3, 4]


def test_it_runs_in_a_thread_where_no_signal_can_be_heard(paper):
    found = []
    thread = threading.Thread(target=lambda: found.append(reproduce("fake", seeds=1)))
    thread.start()
    thread.join()
    assert len(found[0].rows) == 6


def test_an_interrupted_fresh_start_leaves_no_older_seed(paper, call):
    call("fake", "--seeds", 3)
    paper.events["DL-MV", 1] = interrupt
    assert "the same command without --fresh" in call("fake", "--seeds", 3, "--fresh", code=INTERRUPTED).err
    paper.events.clear()
    paper.seeds_run()
    call("fake", "--seeds", 3)
    assert paper.seeds_run() == 8


def test_an_interruption_writes_no_file_that_would_stand_in_the_way(paper, call, tmp_path):
    paper.events["DL-MV", 2] = interrupt
    call("fake", "--out", "table.md", code=INTERRUPTED)
    assert not (tmp_path / "table.md").exists()
    paper.events.clear()
    call("fake", "--out", "table.md")
    assert (tmp_path / "table.md").exists()


def test_any_other_error_stops_and_the_finished_seeds_stay(paper, call):
    def fail():
        raise PyrocrowdError("The loss is nan.")

    paper.events["CoNAL", 1] = fail
    assert "The loss is nan." in call("fake", "--seeds", 2, code=2).err
    paper.events.clear()
    paper.seeds_run()
    call("fake", "--seeds", 2)
    assert paper.seeds_run() == 3


def test_a_missing_data_set_is_left_out_with_its_reason_and_the_others_run(paper, call, monkeypatch):
    missing = [
        Experiment("Fish", method, lambda seed: folder_of("no_such_fish"), {}, {BEST: "90.00"})
        for method in ("DL-MV", "CoNAL")
    ]
    register(monkeypatch, "partly", lambda: [*missing, *paper.experiments()])
    with pytest.warns(PyrocrowdWarning, match="Fish is left out. There is no data set no_such_fish: set") as said:
        printed = call("partly", "--seeds", 2)
    assert len(said) == 1
    lines = cells(printed.out)[2:]
    assert all_of(lines, "Fish") == [
        ["Fish", method, BEST[0], "90.00", reason_of("no_such_fish"), "0", BEST[1]] for method in ("DL-MV", "CoNAL")
    ]
    assert {line[5] for line in all_of(lines, "Birds") + all_of(lines, "Songs")} == {"2"}
    with pytest.warns(PyrocrowdWarning, match="left out"):
        rows = json.loads(call("partly", "--seeds", 2, "--json").out)
    assert row_of(rows, "Fish", "CoNAL") == dict(
        zip(KEYS, ["partly", "Fish", "CoNAL", BEST[0], "90.00", None, None, 0, BEST[1]], strict=True)
    )


def all_of(lines, dataset):
    return [line for line in lines if line[0] == dataset]


def reason_of(name):
    return f"There is no data set {name}: set {VARIABLE} to the folder that holds it."


def test_a_missing_data_set_without_published_figures_has_a_row_too(paper, monkeypatch):
    register(monkeypatch, "bare", lambda: [Experiment("Fish", "CoNAL", lambda seed: folder_of("no_such_fish"))])
    with pytest.warns(PyrocrowdWarning, match="left out"):
        results = reproduce("bare")
    assert cells(results.to_markdown())[2] == ["Fish", "CoNAL", "-", "-", reason_of("no_such_fish"), "0", "-"]


def test_a_missing_file_inside_a_data_set_is_an_error(paper, call, monkeypatch):
    register(monkeypatch, "torn", lambda: [Experiment("Birds", "CoNAL", lambda seed: open("birds/features.npy"))])
    assert "birds/features.npy: No such file or directory" in call("torn", code=2).err


# -------------------------------------------------------------------- what is asked for


def test_only_and_dataset_choose_in_any_case(paper, call):
    call("fake", "--seeds", 1, "--only", "conal, dl-mv", "--dataset", "BIRDS")
    assert set(paper.ran) == {("Birds", "DL-MV", 0), ("Birds", "CoNAL", 0)}
    paper.seeds_run()
    reproduce("fake", seeds=1, only=["CONAL"])
    assert set(paper.ran) == {("Songs", "CoNAL", 0)}  # the other one is kept


def test_unknown_names_are_all_said_at_once_with_what_there_is(paper, call, tmp_path):
    said = call("fake", "--only", "conl,DL-MV,xyz", "--dataset", "bird", code=2).err.splitlines()
    assert said == [
        "error: fake has no method 'conl' (it has DL-MV, CoNAL). Did you mean 'CoNAL'?",
        "error: fake has no method 'xyz' (it has DL-MV, CoNAL).",
        "error: fake has no data set 'bird' (it has Birds, Songs). Did you mean 'Birds'?",
    ]
    assert paper.seeds_run() == 0 and not list(tmp_path.iterdir())


def test_a_method_that_is_not_run_on_the_data_set_is_an_error(paper, call):
    assert (
        "fake has no such method on such a data set"
        in call("fake", "--only", "DL-MV", "--dataset", "Songs", code=2).err
    )


def test_an_unknown_table_or_none_is_an_error_that_names_them(paper, call):
    assert "There is no table 'fke' (there are" in call("fke", code=2).err
    assert "Did you mean 'fake'?" in call("fke", code=2).err
    said = call(code=2).err
    assert said.startswith("error: Name a table") and "fake" in said


@pytest.mark.parametrize("seeds", [0, -1])
def test_at_least_one_seed_is_needed(paper, call, seeds):
    call("fake", "--seeds", seeds, code=2)
    with pytest.raises(PyrocrowdError, match="seeds must be a number of at least 1"):
        reproduce("fake", seeds=seeds)


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_data_sets_the_folder_for_the_duration(paper, call, tmp_path, monkeypatch, before):
    monkeypatch.delenv(VARIABLE, raising=False)
    if before:
        monkeypatch.setenv(VARIABLE, before)
    (tmp_path / "data" / "fish").mkdir(parents=True)
    (tmp_path / "data" / "fish" / "count").write_text("42")

    def run(seed):
        return {BEST: float((folder_of("fish") / "count").read_text())}

    register(monkeypatch, "real", lambda: [Experiment("Fish", "CoNAL", run)])
    (row,) = json.loads(call("real", "--seeds", 1, "--data", "data", "--json").out)
    assert row["mean"] == 42 and os.environ.get(VARIABLE) == before
    assert "The folder nowhere does not exist." in call("real", "--data", "nowhere", code=2).err


# -------------------------------------------------------------------- what is printed


def test_json_is_all_there_is_on_stdout_and_has_the_nine_keys(paper, call):
    printed = call("fake", "--seeds", 2, "--json")
    rows = json.loads(printed.out)
    assert len(rows) == 6 and all(list(row) == KEYS for row in rows)
    assert rows == reproduce("fake", seeds=2).rows
    assert "Birds, DL-MV, seed 0" in printed.err and "5/6 fake: Songs, CoNAL, seed 1" in printed.err


def test_the_frame_holds_the_rows(paper):
    results = reproduce("fake", seeds=2)
    frame = results.to_frame()
    assert frame.columns.tolist() == KEYS and len(frame) == 6
    assert frame["mean"].tolist() == [row["mean"] for row in results.rows]


def test_the_markdown_table_is_well_formed(paper, call):
    printed = call("fake", "--seeds", 2).out
    assert printed.startswith("### Made-up figures\n\nNobody (2021)\n\n| dataset |")
    lines = cells(printed)
    assert lines[0] == ["dataset", "method", "metric", "published", "ours (mean ± std)", "seeds", "how selected"]
    assert lines[1] == ["---"] * 7 and {len(line) for line in lines} == {7} and len(lines) == 8
    assert lines[2] == ["Birds", "DL-MV", "test accuracy", "79.83 ± 0.34", "81.00 ± 1.41", "2", "best on validation"]
    assert lines[3] == ["Birds", "DL-MV", "test accuracy", "-", "0.5000 ± 0.0000", "2", "last epoch"]


def test_pipes_and_line_breaks_in_names_do_not_break_the_table(paper, monkeypatch):
    one = Experiment("a|b/c*", "é [red]|", lambda seed: {("P(y|z)", "a\nb"): -3.14159})
    register(monkeypatch, "odd", lambda: [one])
    for _ in range(2):
        markdown = reproduce("odd", seeds=1).to_markdown()
        assert cells(markdown)[2] == [r"a\|b/c*", r"é [red]\|", r"P(y\|z)", "-", "-3.14 ± -", "1", "a b"]


def test_out_writes_what_was_printed_and_replaces_only_by_force(paper, call, tmp_path):
    printed = call("fake", "--seeds", 1, "--out", "table.md").out
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == printed
    paper.seeds_run()
    assert "table.md exists" in call("fake", "--seeds", 2, "--out", "table.md", code=2).err
    assert "is a folder" in call("fake", "--out", tmp_path, code=2).err
    assert "does not exist" in call("fake", "--out", "no/table.md", code=2).err
    assert paper.seeds_run() == 0
    json.loads(call("fake", "--seeds", 2, "--out", "table.md", "--force", "--json").out)
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == reproduce("fake", seeds=2).to_markdown() + "\n"


# -------------------------------------------------------------------- the list


def test_help_and_list_build_no_table_and_import_no_torch():
    script = (
        "import sys\nfrom pyrocrowd.cli import main\nfrom pyrocrowd.reproduce import TABLES, Table, later\n"
        "TABLES['fake'] = Table('fake', 'Made up', 'Nobody', ('birds',), later('nowhere:table'))\n"
        "sys.argv = ['pyrocrowd', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    for words in (["reproduce", "--help"], ["reproduce", "--list"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == "False False", done.stderr
    assert "fake" in done.stdout and "birds" in done.stdout


def test_list_names_every_table(paper, call):
    assert "fake" in call("--list").out
    rows = json.loads(call("--list", "--json").out)
    assert [row["name"] for row in rows] == list(TABLES)
    assert rows[-1] == {"name": "fake", "title": "Made-up figures", "citation": "Nobody (2021)", "needs": ["birds"]}
    assert paper.seeds_run() == 0


def test_later_imports_when_it_is_called():
    build = later("no_such_module:table")
    with pytest.raises(ModuleNotFoundError):
        build()
    assert later("builtins:list")() == []


def test_every_table_has_a_name_that_can_be_typed_and_experiments_without_commas():
    for name, table in TABLES.items():
        assert table.name == name == name.lower() and re.fullmatch(r"[a-z0-9-]+", name)
        for one in table.experiments():
            assert "," not in one.dataset + one.method
            json.dumps(one.settings, allow_nan=False)


def test_conal_printed_the_same_figures_in_all_its_tables():
    for dataset, methods in conal.TABLE_1.items():
        assert conal.TABLE_2[dataset][1e-5] == methods["CoNAL"]
        assert all(conal.TABLE_3[dataset][method] == methods[method] for method in ("DL-CL", "CoNAL"))
        assert max(methods, key=methods.get) == "CoNAL" and len(methods) == 9
