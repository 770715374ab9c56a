"""The command line, end to end: what it prints, what it writes, and how it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pyrocrowd
from pyrocrowd import store
from pyrocrowd.cli import INTERRUPTED, app
from pyrocrowd.data.sets import digits
from pyrocrowd.infer.settings import ENGINES

READS_FEATURES = '''
"""A linear classifier and one confusion matrix for each annotator."""
import pyro
import pyro.distributions as dist
import torch

from pyrocrowd import Confused
from pyrocrowd.nets import backbone


class MyModel(torch.nn.Module):
    """A linear classifier watched by annotators."""

    def __init__(self, crowd, net="linear", weight=3.0):
        super().__init__()
        self.net, self.weight = backbone(net, crowd), weight

    def forward(self, crowd):
        prior = torch.ones(crowd.n_classes, crowd.n_classes) + self.weight * torch.eye(crowd.n_classes)
        with crowd.annotators:
            confusion = pyro.sample("confusion", dist.Dirichlet(prior).to_event(1))
        logits = self.net(crowd.features)
        with crowd.items:
            truth = pyro.sample("truth", dist.Categorical(logits=logits))
            with crowd.annotations as annotator:
                pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)
'''


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A small crowd with features and truth as files in a folder of its own, which is where commands run."""
    monkeypatch.chdir(tmp_path)
    crowd = digits(items=60).crowd
    crowd.to_frame().to_csv("labels.csv", index=False)
    pd.DataFrame({"item": crowd.item_names, "label": crowd.class_names[crowd.truth]}).to_csv("gold.csv", index=False)
    pd.DataFrame(crowd.features, index=pd.Index(crowd.item_names, name="item")).to_csv("features.csv")
    np.save("features.npy", crowd.features)
    (tmp_path / "my_model.py").write_text(READS_FEATURES)
    return crowd


@pytest.fixture
def run(capsys):
    """Run a command line in this process; gives what it printed, or, where it must fail, what it said."""

    def run(*words, code=0):
        with pytest.raises(SystemExit) as end:
            app([str(word) for word in words])
        printed = capsys.readouterr()
        assert end.value.code == code, printed.err
        return printed.err if code else printed.out

    return run


def command(*words, **options):
    """The same in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pyrocrowd", *words], capture_output=True, text=True, timeout=120, **options
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -------------------------------------------------------------------- help


def test_help_answers_without_importing_torch():
    script = (
        "import sys\nfrom pyrocrowd.cli import main\nsys.argv = ['pyrocrowd', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    for words in (["--help"], ["fit", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
        assert "Usage" in done.stdout and done.stdout.splitlines()[-1] == "False False", done.stderr


def test_python_m_pyrocrowd_is_the_command():
    done = command("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("fit", "predict", "show", "models", "check", "demo"))


def test_every_setting_of_every_engine_is_a_flag_of_fit(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("fit", "--help").split()
    for engine in ENGINES.values():
        for one in fields(engine):
            assert (f"--{one.name.replace('_', '-')}" in shown) or one.metadata.get("hidden")
    assert "--validation" not in shown


def test_a_flag_says_which_engines_take_it_and_their_defaults(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("fit", "--help")
    assert "Step size at the start (em: of the networks). em 0.01, map 0.01, svi 0.02" in shown
    assert "Monte Carlo samples per step. svi 1" in shown


# -------------------------------------------------------------------- fit


def test_fit_writes_every_table_and_record(run, data, tmp_path):
    printed = run("fit", "dawid_skene", "labels.csv", "--truth", "gold.csv", "--out", "run", "--seed", "3")
    assert "accuracy" in printed and "Written to run" in printed
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "annotators.csv", "labels.csv", "posterior.nc", "run.json", "weights.safetensors"
    ]  # fmt: skip
    labels = pd.read_csv("run/labels.csv")
    classes = [str(name) for name in range(10)]
    assert labels.columns.tolist() == ["item", "label", "confidence", *classes]
    assert labels["item"].tolist() == sorted(data.item_names)
    assert np.allclose(labels[classes].sum(axis=1), 1)
    assert labels["label"].tolist() == labels[classes].to_numpy().argmax(1).tolist()
    assert np.allclose(labels["confidence"], labels[classes].max(axis=1))
    annotators = pd.read_csv("run/annotators.csv")
    assert annotators.columns[:5].tolist() == ["annotator", "n_labels", "skill", "skill_low", "skill_high"]
    assert annotators["n_labels"].tolist() == data.labels_per_annotator.tolist()
    assert (annotators["skill_low"] <= annotators["skill"]).all()
    assert (annotators["skill"] <= annotators["skill_high"]).all()
    with xr.open_dataset("run/posterior.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior["annotator"].values.tolist() == data.annotator_names.tolist()


def test_the_record_holds_everything_that_made_the_run(run, data):
    words = ("--engine", "em", "--max-iter", "7", "--seed", "3", "--set", "smoothing=0.5")
    run("fit", "dawid_skene", "labels.csv", "--truth", "gold.csv", "--out", "run", *words)
    with open("run/run.json") as file:
        record = json.load(file)
    assert record["model"]["name"] == "dawid_skene" and record["hyper_parameters"]["smoothing"] == 0.5
    assert record["engine"] == {"name": "em", **pyrocrowd.EM(max_iter=7).settings()}
    assert record["seed"] == 3 and len(record["losses"]) <= 7
    assert record["data"]["fingerprint"] == store.fingerprint(pyrocrowd.Crowd.read("labels.csv"))
    assert (record["data"]["items"], record["data"]["annotations"]) == (60, 180)
    assert {"python", "torch", "pyro", "numpy"} <= set(record["versions"])
    gold, labels = pd.read_csv("gold.csv"), pd.read_csv("run/labels.csv")
    both = gold.merge(labels, on="item", suffixes=("_true", "_found"))
    share = (both["label_true"] == both["label_found"]).mean()
    assert record["metrics"]["accuracy"] == pytest.approx(share)
    assert 0 < record["wall_time_seconds"] < 100 and record["command"].startswith("pyrocrowd")


def test_the_fingerprint_changes_with_a_label_and_not_with_the_order_of_rows():
    table = digits(items=20).crowd.to_frame()
    shuffled, changed = table.sample(frac=1, random_state=0), table.copy()
    changed.loc[0, "label"] = (changed.loc[0, "label"] + 1) % 10
    prints = [
        store.fingerprint(pyrocrowd.Crowd.from_frame(one, classes=range(10))) for one in (table, shuffled, changed)
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("engine", [("em", "--restarts", "2"), ("svi", "--steps", "20"), ("map", "--steps", "20")])
def test_the_same_seed_gives_the_same_labels(run, data, engine):
    for name in ("one", "two"):
        run("fit", "dawid_skene", "labels.csv", "--out", name, "--seed", "5", "--engine", *engine)
    with open("one/labels.csv") as one, open("two/labels.csv") as two:
        assert one.read() == two.read()


def test_another_seed_gives_other_draws(run, data):
    for seed in "12":
        run("fit", "dawid_skene", "labels.csv", "--out", seed, "--seed", seed, "--engine", "svi", "--steps", "20")
    assert not pd.read_csv("1/labels.csv").equals(pd.read_csv("2/labels.csv"))


@pytest.mark.parametrize(
    "text, value",
    [
        ("2", 2), ("-0.5", -0.5), ("1e-3", 0.001), ("true", True), ("False", False), ("none", None), ("None", None),
        ("joint", "joint"), ("[1, 2]", [1, 2]), ("a=b", "a=b"), ("", ""), ("007", "007"), ("'2'", "2"),
        ("{[]: 1}", "{[]: 1}"),
    ],
)  # fmt: skip
def test_set_reads_numbers_constants_and_text(text, value):
    from pyrocrowd.cli import _settings

    found = _settings([f"name={text}"])["name"]
    assert found == value and type(found) is type(value)


def test_columns_are_named_by_their_text_even_where_it_looks_like_something_else(run, data):
    table = pd.read_csv("labels.csv").set_axis(["1e3", "true", "my label"], axis="columns")
    table.to_csv("other.csv", index=False)
    columns = ("--column", "item=1e3", "--column", "annotator=true", "--column", "label=my label")
    assert "180 labels by 12 annotators on 60 items" in run(
        "fit", "majority_vote", "other.csv", "--out", "run", *columns
    )


def test_a_run_is_replaced_only_by_force(run, data, tmp_path):
    run("fit", "majority_vote", "labels.csv", "--out", "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    before = contents(tmp_path / "run")
    assert "run already holds a run" in run("fit", "dawid_skene", "labels.csv", "--out", "run", code=2)
    assert contents(tmp_path / "run") == before
    run("fit", "dawid_skene", "labels.csv", "--out", "run", "--force")
    assert store.read_record("run")["model"]["name"] == "dawid_skene"
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("fails_in", ["to_arviz", "_swap"])
def test_a_forced_run_that_fails_leaves_the_old_one_as_it_was(run, data, tmp_path, monkeypatch, fails_in):
    run("fit", "majority_vote", "labels.csv", "--out", "run")
    before, around = contents(tmp_path / "run"), sorted(tmp_path.iterdir())

    def fail(*_):
        raise OSError(28, "No space left on device", "run")

    if fails_in == "to_arviz":
        monkeypatch.setattr(pyrocrowd.Fit, "to_arviz", fail)
    else:  # half of the new files are in their place when the disk is full
        move, calls = store.Path.rename, []
        monkeypatch.setattr(
            store.Path, "rename", lambda path, to: fail() if calls.append(to) or len(calls) == 8 else move(path, to)
        )
    said = run("fit", "dawid_skene", "labels.csv", "--out", "run", "--force", code=2)
    assert said == "error: run: No space left on device.\n"
    assert contents(tmp_path / "run") == before and sorted(tmp_path.iterdir()) == around


def test_a_run_can_be_written_here_or_deep_down_or_through_a_link(run, data, tmp_path, monkeypatch):
    run("fit", "majority_vote", "labels.csv", "--out", "a/b/run")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    run("fit", "majority_vote", "labels.csv", "--out", "link")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    run("fit", "majority_vote", "../labels.csv", "--out", ".")
    assert (tmp_path / "link").is_symlink()
    for place in ("a/b/run", "real", "empty"):
        assert (tmp_path / place / "run.json").exists()


def test_odd_names_are_printed_and_written_as_they_are(run, data, tmp_path):
    rows = [("[red]x[/]", "[bold]ann", ":smile:"), ("[red]x[/]", "bob\\", "label"), ("é漢字", "[bold]ann", "item")]
    rows += [("é漢字", "007", "label"), ("long" * 100, "007", "item"), ("long" * 100, "bob\\", ":smile:")]
    pd.DataFrame(rows, columns=["item", "annotator", "label"]).to_csv("odd.csv", index=False)
    printed = run("fit", "majority_vote", "odd.csv", "--out", "run")
    shown = run("show", "run")
    for text in (printed, shown):
        assert "[bold]ann " in text and "bob\\ " in text and "007 " in text
    assert "(:smile:, item, label)" in printed
    labels = pd.read_csv("run/labels.csv")
    assert labels.columns.tolist() == ["item", "label", "confidence", ":smile:", "class item", "class label"]
    assert labels["item"].tolist() == ["[red]x[/]", "long" * 100, "é漢字"]


def test_show_keeps_the_leading_zeros_of_annotators(run, data, tmp_path):
    (tmp_path / "zeros.csv").write_text("item,annotator,label\n1,007,x\n1,08,y\n2,007,x\n")
    run("fit", "majority_vote", "zeros.csv", "--out", "run")
    shown = run("show", "run")
    assert "│ 007 " in shown and "│ 08 " in shown


def test_names_that_the_terminal_cannot_show_do_not_end_the_run(tmp_path):
    (tmp_path / "t.csv").write_text("item,annotator,label\n1,é漢,x\n1,b,ü\n", encoding="utf-8")
    done = command(
        "fit", "majority_vote", "t.csv", "--out", "run", cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0, done.stderr
    assert "é漢" in (tmp_path / "run" / "annotators.csv").read_text(encoding="utf-8")


def test_ctrl_c_in_a_long_fit_keeps_what_was_learned(data, tmp_path):
    words = [
        "fit",
        "dawid_skene",
        "labels.csv",
        "--out",
        "run",
        "--engine",
        "svi",
        "--steps",
        "100000",
        "--patience",
        "0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pyrocrowd", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("Crowd: 180 labels")  # printed just before the fit begins
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    assert "Stopped by Ctrl-C" in said and "Traceback" not in said
    record = store.read_record(tmp_path / "run")
    assert record["notes"]["stopped"] == "interrupted" and 0 < len(record["losses"]) < 100000
    assert len(pd.read_csv(tmp_path / "run" / "labels.csv")) == 60


def test_ctrl_c_outside_the_engine_ends_with_its_code_and_writes_nothing(run, data, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pyrocrowd.Fit, "to_arviz", interrupt)
    run("fit", "majority_vote", "labels.csv", "--out", "run", code=INTERRUPTED)
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "__pycache__"]


# -------------------------------------------------------------------- predict


def test_predict_without_features_labels_the_items_of_the_run(run, data):
    run("fit", "dawid_skene", "labels.csv", "--out", "run")
    assert "60 items labelled in p.csv" in run("predict", "run", "--out", "p.csv")
    pd.testing.assert_frame_equal(pd.read_csv("p.csv"), pd.read_csv("run/labels.csv"))


def test_a_model_from_a_file_predicts_after_the_file_is_gone(run, data, tmp_path):
    fit = ("fit", "my_model.py", "labels.csv", "--engine", "map", "--epochs", "2", "--set", "weight=2.5")
    run(*fit, "--features", "features.csv", "--out", "run")
    here = pyrocrowd.load("run").predict_proba(data.features)
    shutil.move("run", "elsewhere")
    (tmp_path / "my_model.py").unlink()
    run("predict", "elsewhere", "--features", "features.npy", "--out", "by_row.csv")
    run("predict", "elsewhere", "--features", "features.csv", "--out", "by_name.csv")
    by_row, by_name = pd.read_csv("by_row.csv"), pd.read_csv("by_name.csv")
    assert by_row["item"].tolist() == list(range(60)) and by_name["item"].tolist() == data.item_names.tolist()
    assert np.allclose(by_row.iloc[:, 3:], here, atol=1e-5) and np.allclose(by_name.iloc[:, 3:], here, atol=1e-5)
    assert store.read_record("elsewhere")["hyper_parameters"] == {"net": "linear", "weight": 2.5}


def test_new_features_of_another_shape_or_with_gaps_are_refused(run, data, tmp_path):
    fit = ("fit", "my_model.py", "labels.csv", "--engine", "map", "--steps", "1", "--features", "features.csv")
    run(*fit, "--out", "run")
    for array, sentence in (
        (np.zeros((4, 3)), "The features have shape (3,) where the fit had (64,)."),
        (np.full((4, 64), np.nan), "The features of 4 items hold NaN or infinite values"),
        (np.array(1.0), "The features have shape () where the fit had (64,)."),
        (np.full((4, 64), "x"), "The features must be numbers"),
    ):
        np.save("new.npy", array)
        assert sentence in run("predict", "run", "--features", "new.npy", "--out", "p.csv", code=2)
    assert not (tmp_path / "p.csv").exists()


def test_the_other_splits_of_a_folder_are_scored(run, data, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy("labels.csv", folder / "annotations.csv")
    (folder / "tasks.txt").write_text("\n".join(data.item_names))
    np.save(folder / "features_train.npy", data.features)
    for split in ("valid", "test"):
        np.save(folder / f"features_{split}.npy", data.features[:20])
        pd.DataFrame({"item": range(20), "label": data.truth[:20]}).to_csv(folder / f"truth_{split}.csv", index=False)
    words = ("--engine", "map", "--steps", "30", "--select", "best")
    run("fit", "my_model.py", "folder", "--out", "run", *words)
    record, fitted = store.read_record("run"), pyrocrowd.load("run")
    share = (fitted.predict(data.features[:20]) == data.truth[:20]).mean()
    assert record["metrics"]["valid_accuracy"] == record["metrics"]["test_accuracy"] == pytest.approx(share)
    assert record["notes"]["selection"] == "best"


# -------------------------------------------------------------------- show, models, check, demo


def test_show_prints_the_figures_and_its_json_holds_all_of_them(run, data):
    run("fit", "dawid_skene", "labels.csv", "--truth", "gold.csv", "--out", "run")
    record = json.loads(run("show", "run", "--json"))
    fitted = pyrocrowd.load("run")
    assert record["metrics"] == pytest.approx(fitted.metrics())
    assert record["losses"] == fitted.losses and record["notes"] == fitted.notes
    shown = run("show", "run")
    for name, value in record["metrics"].items():
        assert name.replace("_", " ") in shown and f"{value:,.4f}" in shown
    assert all(name in shown for name in data.annotator_names)


def test_models_lists_every_model_with_its_settings(run):
    rows = {row["name"]: row for row in json.loads(run("models", "--json"))}
    assert list(rows) == pyrocrowd.zoo.names()
    assert rows["majority_vote"]["hyper_parameters"] == {"vote": "soft"}
    assert "em" in rows["dawid_skene"]["engines"] and rows["dawid_skene"]["summary"]
    shown = run("models")
    assert all(name in shown for name in rows)


def test_check_says_what_a_good_model_draws(run, data):
    shown = run("check", "dawid_skene")
    assert "keeps the contract" in shown and "does not read item features; EM is there" in shown
    shown = run("check", "my_model.py", "--data", "labels.csv", "--features", "features.csv")
    assert "MyModel keeps the contract" in shown and "It reads item features; EM is not there" in shown


BROKEN = {
    "no_label": ("def story(crowd):\n    pass\n", "draws no site `label`"),
    "syntax": ("def story(crowd:\n", "does not run: SyntaxError"),
    "no_model": ("x = 1\n", "should hold one model"),
    "raises": ("def story(crowd):\n    return crowd.n_classes / 0\n", "ZeroDivisionError"),
    "no_features": ("def story(crowd):\n    crowd.features\n", "the crowd has none"),
}


@pytest.mark.parametrize("source, sentence", BROKEN.values(), ids=BROKEN)
def test_check_says_what_is_wrong_with_a_broken_model(run, data, tmp_path, source, sentence):
    (tmp_path / "broken.py").write_text(source)
    said = run("check", "broken.py", "--data", "labels.csv", code=2)
    assert said.startswith("error: ") and sentence in said and "Traceback" not in said


def test_the_demo_leaves_a_run_may_be_repeated_and_spares_the_runs_of_others(run, data, tmp_path):
    run("fit", "majority_vote", "labels.csv", "--out", "mine")
    before = contents(tmp_path / "mine")
    run("demo", "--out", "mine", code=2)
    assert contents(tmp_path / "mine") == before
    for _ in range(2):
        printed = run("demo", "--out", "shown")
    assert "true skill" in printed and "pyrocrowd show shown" in printed
    metrics = store.read_record("shown")["metrics"]
    assert metrics["accuracy"] > metrics["accuracy_of_majority_vote"]
