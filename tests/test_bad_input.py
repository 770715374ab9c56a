"""Bad input: one clear sentence per problem, exit code 2, no traceback, and nothing written."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from pyrocrowd import Crowd, PyrocrowdError
from pyrocrowd.cli import app

GOOD = "item,annotator,label\n0,ann,cat\n0,bob,dog\n1,ann,dog\n1,bob,dog\n2,cy,cat\n"


@pytest.fixture
def pyrocrowd(tmp_path, monkeypatch, capsys):
    """Run a command line in a folder of its own; gives exit code, output and messages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text(GOOD)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            app([str(word) for word in words])
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


@pytest.fixture
def refused(pyrocrowd, tmp_path):
    """Run a command line that must fail; gives its sentences, after a look at what it left behind."""

    def run(*words):
        before = sorted(tmp_path.rglob("*"))
        code, _, said = pyrocrowd(*words)
        assert code == 2, said
        assert "Traceback" not in said
        assert sorted(tmp_path.rglob("*")) == before
        lines = said.splitlines()
        assert lines and all(line.startswith("error: ") for line in lines)
        return [line.removeprefix("error: ") for line in lines]

    return run


def fit(data="good.csv", *more, model="dawid_skene"):
    return "fit", model, data, "--out", "run", *more


# -------------------------------------------------------------------- tables

TABLES = {
    "missing_column": ("item,annotator,score\n0,ann,1\n", "no column for the label among item, annotator, score"),
    "empty": ("", "bad.csv is empty."),
    "blank_lines": ("\n\n\n", "bad.csv is empty."),
    "header_only": ("item,annotator,label\n", "bad.csv holds no labels."),
    "latin_1": (b"item,annotator,label\n0,Andr\xe9,cat\n", "bad.csv is not UTF-8 text (byte"),
    "empty_label": (GOOD + "2,bob,\n", "bad.csv: 1 row has no label (row 6)."),
    "nan_labels": (GOOD + "2,bob,NaN\n2,ann,nan\n", "bad.csv: 2 rows have no label (row 6, 7)."),
    "blank_annotator": (GOOD + '2,"  ",cat\n', "bad.csv: 1 row has no annotator (row 6)."),
    "one_class": ("item,annotator,label\n0,ann,cat\n1,bob,cat\n", "All labels in bad.csv are 'cat'"),
    "one_row": ("item,annotator,label\n0,ann,cat\n", "All labels in bad.csv are 'cat'"),
    "ragged": (GOOD + "2,bob,cat,extra,more\n", "line 7 has 5 cells and the header 3."),
    "all_rows_too_long": ("item,annotator,label\n0,ann,cat,x\n0,bob,dog,x\n", "rows have more cells than its header."),
    "rows_too_short": (GOOD + "2,bob\n", "bad.csv: 1 row has no label (row 6)."),
    "open_quote": (GOOD + '2,"bob,cat\n', "bad.csv cannot be read as .csv: "),
    "garbage": (bytes(range(128, 256)) * 20, "bad.csv is not UTF-8 text (byte"),
    "zeros": (bytes(500), "no column for the item"),
}


@pytest.mark.parametrize("content, sentence", TABLES.values(), ids=TABLES)
def test_a_broken_table_is_refused_with_its_own_sentence(refused, tmp_path, content, sentence):
    (tmp_path / "bad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert sentence in " ".join(refused(*fit("bad.csv")))


OTHER_KINDS = {
    "empty_parquet": ("bad.parquet", b"", "bad.parquet cannot be read as .parquet: "),
    "garbage_parquet": ("bad.parquet", b"\x00\xff" * 300, "bad.parquet cannot be read as .parquet: "),
    "empty_jsonl": ("bad.jsonl", b"", "bad.jsonl is empty."),
    "garbage_jsonl": ("bad.jsonl", b"\x00\xff" * 300, "bad.jsonl is not UTF-8 text"),
    "half_a_jsonl": ("bad.jsonl", b'{"item": 1}\n{"item"', "bad.jsonl cannot be read as .jsonl: line 2: "),
    "jsonl_of_lists": ("bad.jsonl", b"[1, 2, 3]\n", "line 1 is not an object"),
    "unknown_kind": ("bad.xlsx", b"PK", "bad.xlsx is of no kind that pyrocrowd reads"),
}  # fmt: skip


@pytest.mark.parametrize("name, content, sentence", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_a_broken_file_of_another_kind_is_refused(refused, tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    assert sentence in refused(*fit(name))[0]


def test_every_missing_column_has_a_sentence_of_its_own(refused, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b,c\n1,2,3\n")
    said = refused(*fit("bad.csv"))
    assert [line.split(" among")[0] for line in said] == [
        f"bad.csv: no column for the {part}" for part in ("item", "annotator", "label")
    ]


def test_a_missing_file_is_named(refused):
    assert refused(*fit("nowhere.csv")) == ["nowhere.csv does not exist."]


def test_a_folder_without_annotations_is_named(refused, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "annotation.csv").write_text(GOOD)
    assert refused(*fit("data")) == ["The folder data holds no annotations.csv. Did you mean 'annotation.csv'?"]


# -------------------------------------------------------------------- truth and features


def test_an_unknown_label_in_the_truth_is_named_with_its_row_and_a_suggestion(refused, tmp_path):
    (tmp_path / "gold.csv").write_text("item,label\n0,cat\n1,dgo\n")
    said = refused(*fit("good.csv", "--truth", "gold.csv"))
    assert said == ["gold.csv, row 2: label 'dgo' is not one of the 2 classes (cat, dog). Did you mean 'dog'?"]


def test_a_truth_about_other_items_is_refused(refused, tmp_path):
    (tmp_path / "gold.csv").write_text("item,label\n7,cat\n8,dog\n")
    assert "none of its 2 items is in the crowd (7, 8)" in refused(*fit("good.csv", "--truth", "gold.csv"))[0]


def test_truth_and_no_truth_contradict_each_other(refused):
    assert "contradict" in refused(*fit("good.csv", "--truth", "good.csv", "--no-truth"))[0]


ARRAYS = {
    "too_few_rows": (np.zeros((2, 3)), "The features have 2 rows, numbered from 0, and the table has an item 2"),
    "nan": (
        np.array([[0.0], [np.nan], [np.inf]]),
        "The features of 2 items hold NaN or infinite values (row 1, 2 from 0).",
    ),
    "text": (np.array([["a"], ["b"], ["c"]]), "The features must be numbers, not <U1."),
    "one_dimension": (np.zeros(3), "The features need one row per item and at least one column."),
    "no_columns": (np.zeros((3, 0)), ""),
    "a_single_value": (
        np.array(3.0),
        "The features need one row per item and at least one column, not a single value.",
    ),
    "objects": (np.array([[{}], [[]], [None]], object), "f.npy cannot be read as an array of numbers"),
}


@pytest.mark.parametrize("array, sentence", ARRAYS.values(), ids=ARRAYS)
def test_features_that_do_not_fit_are_refused(refused, tmp_path, array, sentence):
    np.save(tmp_path / "f.npy", array, allow_pickle=True)
    said = refused(*fit("good.csv", "--features", "f.npy"))
    assert len(said) == 1 and sentence in said[0]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93NUMPY\x01\x00", b"PK\x03\x04" + bytes(50), b"\x80\x04."])
def test_a_file_that_is_no_array_is_refused(refused, tmp_path, content):
    (tmp_path / "f.npy").write_bytes(content)
    said = refused(*fit("good.csv", "--features", "f.npy"))
    assert len(said) == 1 and "f.npy cannot be read as an array of numbers" in said[0]


def test_a_truncated_array_is_refused(refused, tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((3, 100)))
    (tmp_path / "f.npy").write_bytes((tmp_path / "f.npy").read_bytes()[:-50])
    assert "f.npy cannot be read as an array of numbers" in refused(*fit("good.csv", "--features", "f.npy"))[0]


FEATURE_TABLES = {
    "words": ("item,x\n0,1\n1,tall\n2,3\n", "every column but item must hold numbers"),
    "gap": ("item,x\n0,1\n1,\n2,3\n", "The features of 1 item hold NaN"),
    "item_missing": ("item,x\n0,1\n1,2\n", "item 2 is not one of the 2 items"),
    "item_twice": ("item,x\n0,1\n1,2\n2,2\n1,3\n", "f.csv has more than one row for 1."),
    "no_numbers": ("item\n0\n1\n2\n", "f.csv needs a column for the item and a number in each other column."),
}


@pytest.mark.parametrize("content, sentence", FEATURE_TABLES.values(), ids=FEATURE_TABLES)
def test_a_features_table_that_does_not_fit_is_refused(refused, tmp_path, content, sentence):
    (tmp_path / "f.csv").write_text(content)
    said = refused(*fit("good.csv", "--features", "f.csv"))
    assert len(said) == 1 and sentence in said[0]


def test_features_that_are_not_there_are_named(refused):
    assert refused(*fit("good.csv", "--features", "f.npy")) == ["The features file f.npy does not exist."]


def test_rows_of_different_length_are_no_features():
    with pytest.raises(PyrocrowdError, match="rows differ in length"):
        Crowd.from_matrix([[0, 1], [1, 0]], features=[[1, 2], [3]])


# -------------------------------------------------------------------- words of the command line

WORDS = {
    "unknown_model": (fit(model="david_skene"), "There is no model 'david_skene'", "Did you mean 'dawid_skene'?"),
    "missing_model_file": (fit(model="mine.py"), "The model file mine.py does not exist.", ""),
    "unknown_hyper_parameter": (fit("good.csv", "--set", "strenght=2"), "no hyper-parameter 'strenght'", "'strength'?"),
    "wrong_vote": (fit("good.csv", "--set", "vote=medium", model="majority_vote"), "vote", "not 'medium'"),
    "unknown_engine": (fit("good.csv", "--engine", "svii"), "There is no engine 'svii'", "Did you mean 'svi'?"),
    "flag_of_another_engine": (
        fit("good.csv", "--engine", "em", "--batch-size", "5"),
        "--batch-size is not a setting of em (which has --max-iter, --tol, --restarts, ",
        "--learning-rate).",
    ),
    "draws_of_map": (fit("good.csv", "--engine", "map", "--draws", "5"), "--draws is not a setting of map", ""),
    "out_of_range": (fit("good.csv", "--max-iter", "0"), "max_iter must be at least 1, not 0", ""),
    "unknown_choice": (fit("good.csv", "--engine", "svi", "--schedule", "slow"), "schedule must be one of", "'slow'"),
    "unknown_device": (fit("good.csv", "--device", "gpuu"), "The device gpuu cannot be used here", ""),
    "set_without_value": (fit("good.csv", "--set", "strength"), "--set takes NAME=VALUE, not 'strength'.", ""),
    "set_without_name": (fit("good.csv", "--set", "=2"), "--set takes NAME=VALUE, not '=2'.", ""),
    "column_without_name": (fit("good.csv", "--column", "label"), "--column takes NAME=VALUE, not 'label'.", ""),
    "column_of_no_part": (fit("good.csv", "--column", "truth=x"), "'truth' is not one of item, annotator, label", ""),
    "column_not_there": (fit("good.csv", "--column", "label=lable"), "no column 'lable' for the label", "'label'?"),
}


@pytest.mark.parametrize("words, sentence, ending", WORDS.values(), ids=WORDS)
def test_a_wrong_word_is_refused_with_its_own_sentence(refused, words, sentence, ending):
    said = refused(*words)
    assert len(said) == 1 and sentence in said[0] and ending in said[0]


def test_all_wrong_settings_are_reported_at_once(refused):
    said = refused(*fit("good.csv", "--engine", "svi", "--steps", "0", "--clip", "0"))
    assert [line.split(" must")[0] for line in said] == ["svi: steps", "svi: clip"]


@pytest.mark.parametrize("words", [("--seed", "-1"), ("--seed", "x"), ("--steps", "many"), ("--nonsense", "1")])
def test_words_that_no_flag_takes_end_with_code_2(pyrocrowd, tmp_path, words):
    code, _, said = pyrocrowd(*fit("good.csv", *words))
    assert code == 2 and words[0] in said and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["good.csv"]


# -------------------------------------------------------------------- places


def test_a_run_is_not_written_onto_a_file(refused):
    assert "good.csv is a file, not a folder" in refused("fit", "dawid_skene", "good.csv", "--out", "good.csv")[0]


def test_a_run_is_not_written_among_other_files(refused, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("dear")
    for force in ((), ("--force",)):
        assert refused(*fit("good.csv", *force)) == ["run holds other files and no run: choose an empty folder."]


@pytest.mark.parametrize("place", ["good.csv/run", "x" * 300])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(refused, place):
    assert "cannot be written" in refused("fit", "dawid_skene", "good.csv", "--out", place)[0]


def test_a_folder_without_write_permission_is_refused(refused, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert "cannot be written: Permission denied" in refused("fit", "dawid_skene", "good.csv", "--out", "closed/run")[0]


def test_a_failed_fit_leaves_no_folder_above_the_run_either(refused):
    refused("fit", "dawid_skene", "good.csv", "--out", "new/deep/run", "--device", "gpuu")


@pytest.mark.parametrize("verb", [("show",), ("predict", "--out", "p.csv")])
@pytest.mark.parametrize(
    "record, sentence",
    [
        (None, "run holds no run: there is no run.json in it."),
        ("{", "cannot be read"),
        ("[]", "is not the record of a run"),
        ("{}", "is not the record of a run"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(refused, tmp_path, verb, record, sentence):
    (tmp_path / "run").mkdir()
    if record is not None:
        (tmp_path / "run" / "run.json").write_text(record)
    said = refused(verb[0], "run", *verb[1:])
    assert len(said) == 1 and sentence in said[0]


@pytest.mark.parametrize("lost", ["posterior.nc", "weights.safetensors", "annotators.csv"])
def test_a_run_that_lost_a_file_is_refused(pyrocrowd, refused, tmp_path, lost):
    succeed(pyrocrowd)
    (tmp_path / "run" / lost).unlink()
    said = refused("show", "run") if lost == "annotators.csv" else refused("predict", "run", "--out", "p.csv")
    assert len(said) == 1 and lost in said[0]


@pytest.mark.parametrize("broken", ["posterior.nc", "weights.safetensors"])
def test_a_run_with_a_broken_file_is_refused(pyrocrowd, refused, tmp_path, broken):
    succeed(pyrocrowd)
    (tmp_path / "run" / broken).write_bytes(b"garbage")
    assert "The run in run is not whole" in refused("predict", "run", "--out", "p.csv")[0]


def succeed(pyrocrowd):
    code, _, said = pyrocrowd(*fit())
    assert code == 0, said


def test_predictions_need_a_folder_that_exists_and_a_free_name(pyrocrowd, refused, tmp_path):
    succeed(pyrocrowd)
    (tmp_path / "taken.csv").write_text("mine")
    assert refused("predict", "run", "--out", "missing/p.csv") == ["The folder missing does not exist."]
    assert "taken.csv exists" in refused("predict", "run", "--out", "taken.csv")[0]
    assert "run is a folder" in refused("predict", "run", "--out", "run", "--force")[0]
    assert (tmp_path / "taken.csv").read_text() == "mine"


def test_a_model_without_a_classifier_says_that_it_cannot_label_new_items(pyrocrowd, refused, tmp_path):
    succeed(pyrocrowd)
    np.save(tmp_path / "f.npy", np.zeros((3, 2)))
    assert "has no classifier" in refused("predict", "run", "--features", "f.npy", "--out", "p.csv")[0]


# -------------------------------------------------------------------- what is allowed


def test_an_annotator_with_one_label_is_allowed(pyrocrowd, tmp_path):
    succeed(pyrocrowd)
    annotators = pd.read_csv(tmp_path / "run" / "annotators.csv").set_index("annotator")
    assert annotators.loc["cy", "n_labels"] == 1 and 0 < annotators.loc["cy", "skill"] < 1


def test_an_item_without_labels_is_allowed_where_there_are_features(pyrocrowd, tmp_path):
    np.save(tmp_path / "f.npy", np.eye(5))
    assert pyrocrowd(*fit("good.csv", "--features", "f.npy"))[0] == 0
    assert pd.read_csv(tmp_path / "run" / "labels.csv")["item"].tolist() == [0, 1, 2, 3, 4]


def test_repeated_rows_are_allowed_and_counted_on_one_line_of_warning(tmp_path):
    (tmp_path / "twice.csv").write_text(GOOD + "0,ann,dog\n2,cy,cat\n")
    done = command(tmp_path, *fit("twice.csv"))
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: 2 rows repeat an (item, annotator) pair; all of them are kept as separate labels."
    ]
    assert pd.read_csv(tmp_path / "run" / "annotators.csv")["n_labels"].sum() == 7


def command(place, *words):
    words = [sys.executable, "-m", "pyrocrowd", *words]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=100)


def test_the_real_command_ends_with_code_2_and_one_sentence(tmp_path):
    (tmp_path / "bad.csv").write_text("")
    done = command(tmp_path, *fit("bad.csv"))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: bad.csv is empty.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_a_crowd_reports_all_problems_of_a_table_at_once():
    table = pd.DataFrame({"item": [0, None], "annotator": ["a", ""], "label": ["x", np.nan]})
    with warnings.catch_warnings(), pytest.raises(PyrocrowdError) as caught:
        warnings.simplefilter("error")
        Crowd.from_frame(table)
    assert [problem.split(" has no ")[1] for problem in caught.value.problems] == [
        f"{part} (row 2)." for part in ("item", "annotator", "label")
    ]
