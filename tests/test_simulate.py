"""Simulated crowds: what they were drawn from is what they say, on disk as in memory, and from the command line."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pyrocrowd import Crowd, PyrocrowdError, folders, store
from pyrocrowd.cli import app
from pyrocrowd.data import sets
from pyrocrowd.data.simulate import SIMULATORS, Simulated, conal, from_confusions, hidden
from pyrocrowd.data.simulate.arguments import flags, summary
from pyrocrowd.data.simulate.matrices import flipping, random_pairs, random_targets

SMALL = dict(items=200, annotators=8, classes=4)


@pytest.fixture(scope="module")
def usual():
    return conal()


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line in a folder of its own; gives what it printed, or, where it must fail, what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, code=0):
        with pytest.raises(SystemExit) as end:
            app([str(word) for word in words])
        printed = capsys.readouterr()
        assert end.value.code == code, printed.err
        return printed.err if code else printed.out

    return run


def same(one: Crowd, two: Crowd) -> bool:
    columns = ("item", "annotator", "label", "item_names", "annotator_names", "class_names", "features", "truth")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in columns)


def alike(one: Simulated, two: Simulated) -> bool:
    arrays = all(np.array_equal(one.hidden[name], two.hidden[name]) for name in one.hidden | two.hidden)
    return arrays and all(same(getattr(one, name), getattr(two, name)) for name in ("crowd", "valid", "test"))


def contents(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


# -------------------------------------------------------------------- matrices


def test_a_flipping_matrix_has_its_strength_off_the_diagonal_at_the_target():
    matrix = flipping(np.array([2, 0, 1]), 0.3)
    assert np.allclose(matrix, [[0.7, 0, 0.3], [0.3, 0.7, 0], [0, 0.3, 0.7]])


def test_random_targets_are_never_the_class_itself_and_each_other_class_alike():
    targets = random_targets(np.random.default_rng(0), (4000,), 5)
    assert (targets != np.arange(5)).all()
    shares = [np.bincount(targets[:, c], minlength=5)[np.arange(5) != c] / 4000 for c in range(5)]
    assert np.allclose(shares, 0.25, atol=0.03)


@pytest.mark.parametrize("classes", [2, 5, 6, 7])
def test_random_pairs_are_each_others_target_and_at_most_one_class_is_alone(classes):
    target = random_pairs(np.random.default_rng(0), classes)
    assert (target[target] == np.arange(classes)).all()
    assert (target == np.arange(classes)).sum() == classes % 2


# -------------------------------------------------------------------- conal


def test_conal_has_the_sizes_of_the_paper(usual):
    assert (usual.crowd.n_items, usual.valid.n_items, usual.test.n_items) == (8000, 1000, 1000)
    assert (usual.crowd.n_annotators, usual.crowd.n_classes, usual.crowd.n_annotations) == (30, 6, 24_000)
    assert usual.crowd.feature_shape == usual.valid.feature_shape == usual.test.feature_shape == (20,)
    shapes = {name: array.shape for name, array in usual.hidden.items()}
    assert shapes == {"common": (6, 6), "individual": (30, 6, 6), "source": (24_000,), "omega": (24_000,)}
    assert usual.confusion.shape == (30, 6, 6)
    assert "valid 1,000 items" in repr(usual) and "omega" in repr(usual)


def test_every_train_item_has_labels_of_different_annotators_and_the_others_have_none(usual):
    assert (usual.crowd.labels_per_item == 3).all() and usual.crowd.n_repeated == 0
    assert usual.valid.n_annotations == usual.test.n_annotations == 0
    assert all((part.truth >= 0).all() for part in (usual.crowd, usual.valid, usual.test))


@pytest.mark.parametrize("kind", ["asymmetric", "symmetric"])
def test_rows_sum_to_one_and_the_strength_is_the_mass_off_the_diagonal(kind):
    made = conal(**SMALL, strength=0.6, individual_strength=0.2, kind=kind)
    for matrices, strength in ((made.hidden["common"], 0.6), (made.hidden["individual"], 0.2)):
        assert np.allclose(matrices.sum(-1), 1)
        assert np.allclose(np.diagonal(matrices, axis1=-2, axis2=-1), 1 - strength)
        assert ((matrices > 0).sum(-1) == 2).all()
    assert np.allclose(made.confusion.sum(-1), 1)
    assert len({matrix.tobytes() for matrix in made.hidden["individual"]}) > 1


def test_symmetric_common_noise_swaps_pairs_and_spares_an_odd_class_out():
    even, odd = (
        conal(items=50, classes=classes, kind="symmetric", strength=0.4).hidden["common"] for classes in (6, 5)
    )
    assert np.array_equal(even, even.T) and np.allclose(np.diagonal(even), 0.6)
    assert np.array_equal(odd, odd.T) and sorted(np.diagonal(odd).round(6)) == [0.6] * 4 + [1]


def test_proportion_and_strength_multiply_to_the_papers_42_percent():
    made = conal(strength=0.6, proportion=0.7)
    flipped = (made.hidden["source"] == 1) & (made.crowd.label != made.crowd.truth[made.crowd.item])
    assert flipped.mean() == pytest.approx(0.42, abs=0.01)


@pytest.mark.parametrize("proportion", [0.01, 0.3, 0.5, 0.7, 0.99])
def test_the_mean_of_omega_is_the_proportion_and_its_spread_that_of_unit_vectors(proportion):
    omega = conal(**SMALL, proportion=proportion).hidden["omega"]
    assert omega.mean() == pytest.approx(proportion, abs=1e-9)
    assert 0 < omega.min() < omega.max() < 1
    assert np.ptp(np.log(omega / (1 - omega))) <= 2  # u . v lies between -1 and 1


def test_omega_varies_with_the_annotator_with_the_item_and_with_both(usual):
    crowd, omega = usual.crowd, usual.hidden["omega"]
    by_annotator = np.bincount(crowd.annotator, omega) / crowd.labels_per_annotator
    by_item = np.bincount(crowd.item, omega - by_annotator[crowd.annotator]) / 3
    rest = omega - by_annotator[crowd.annotator] - by_item[crowd.item]
    assert min(by_annotator.std(), by_item.std(), rest.std()) > 0.01


@pytest.mark.parametrize("proportion, matrix", [(0, "individual"), (1, "common")])
def test_at_the_ends_one_matrix_makes_every_label(proportion, matrix):
    made = conal(**SMALL, proportion=proportion)
    assert (made.hidden["omega"] == proportion).all() and (made.hidden["source"] == proportion).all()
    assert np.allclose(made.confusion, made.hidden[matrix])


def test_labels_follow_the_matrix_of_their_source(usual):
    crowd, z = usual.crowd, usual.crowd.truth[usual.crowd.item]
    common = usual.hidden["source"] == 1
    counts = np.zeros((6, 6))
    np.add.at(counts, (z[common], crowd.label[common]), 1)
    assert np.allclose(counts / counts.sum(1, keepdims=True), usual.hidden["common"], atol=0.03)
    allowed = usual.hidden["individual"][crowd.annotator, z, crowd.label]
    assert (allowed[~common] > 0).all()
    assert (crowd.label == z)[~common].mean() == pytest.approx(0.7, abs=0.02)


def test_confusion_is_the_mean_over_the_items_that_an_annotator_labelled():
    made = conal(**SMALL)
    omega, common, individual = (made.hidden[name] for name in ("omega", "common", "individual"))
    for r, confusion in enumerate(made.confusion):
        share = omega[made.crowd.annotator == r, None, None]
        assert np.allclose(confusion, (share * common + (1 - share) * individual[r]).mean(0))


def test_a_clean_classifier_gets_what_the_docstring_says(usual):
    from sklearn.linear_model import LogisticRegression

    clean = LogisticRegression(max_iter=1000).fit(usual.crowd.features, usual.crowd.truth)
    assert clean.score(usual.test.features, usual.test.truth) == pytest.approx(0.967, abs=0.003)


def test_the_same_seed_gives_the_same_crowd_and_another_seed_another():
    assert alike(conal(**SMALL, seed=3), conal(**SMALL, seed=3))
    one, two = conal(**SMALL, seed=3), conal(**SMALL, seed=4)
    assert not np.array_equal(one.crowd.label, two.crowd.label)
    assert not np.array_equal(one.crowd.features, two.crowd.features)


def test_a_sweep_keeps_items_annotators_and_targets():
    one = conal(**SMALL)
    for change in (dict(strength=0.4), dict(proportion=0), dict(kind="symmetric"), dict(individual_strength=0.7)):
        two = conal(**SMALL, **change)
        assert np.array_equal(one.crowd.features, two.crowd.features)
        assert np.array_equal(one.crowd.annotator, two.crowd.annotator)
        assert np.array_equal(one.hidden["individual"] > 0, two.hidden["individual"] > 0)


def test_other_data_can_be_annotated_and_the_rows_are_told():
    pictures = np.random.default_rng(0).integers(256, size=(60, 3, 4, 4)).astype(np.uint8)
    truth = np.arange(60) % 4  # class 4 has no item, and stays
    made = conal(features=pictures, truth=truth, classes=5, annotators=5)
    row = made.hidden["row"]
    assert sorted(row) == list(range(60))
    parts = (made.crowd, made.valid, made.test)
    assert [part.n_items for part in parts] == [48, 6, 6]
    assert np.array_equal(np.concatenate([part.features for part in parts]), pictures[row])
    assert np.array_equal(np.concatenate([part.truth for part in parts]), truth[row])
    assert made.crowd.n_classes == 5 and np.ptp(made.hidden["omega"]) > 0.1


def test_items_without_any_difference_are_no_obstacle():
    made = conal(features=np.ones((20, 2)), truth=np.arange(20) % 2, classes=2)
    assert made.hidden["omega"].mean() == pytest.approx(0.5)


def test_all_bad_arguments_are_named_at_once():
    with pytest.raises(PyrocrowdError) as refusal:
        conal(
            items=3, annotators=2, classes=1, labels_per_item=4, strength=1.2, individual_strength=-0.1,
            proportion=float("nan"), kind="symetric", dimension=0, separation=-1, seed=-1,
        )  # fmt: skip
    problems = refusal.value.problems
    assert len(problems) == 10 and all(problem.endswith((".", "?")) for problem in problems)
    for sentence in (
        "items must be a whole number of at least 10, not 3.",
        "4 labels per item cannot come from 2 different annotators.",
        "strength must be a number from 0 to 1, not 1.2.",
        "kind must be one of asymmetric, symmetric, not 'symetric'. Did you mean 'symmetric'?",
    ):
        assert sentence in problems


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(features=np.ones((20, 2))), "belong together"),
        (dict(truth=np.zeros(20, int)), "belong together"),
        (dict(features=np.ones((20, 2)), truth=np.arange(21) % 2), "20 rows for 21 items"),
        (dict(features=np.ones((20, 2)), truth=np.arange(20)), "truth holds class 19 of classes 0 ... 5"),
        (dict(features=np.ones((20, 2)), truth=np.arange(20) - 1), "truth holds -1"),
        (dict(features=np.ones((20, 2)), truth=np.ones(20)), "as a whole number"),
        (dict(features=np.full((20, 2), np.nan), truth=np.arange(20) % 2), "NaN or infinite"),
        (dict(features=np.ones((5, 2)), truth=np.arange(5)), "at least 10 items"),
        (dict(items=12.5), "items must be a whole number"),
        (dict(strength="much"), "strength must be a number"),
    ],
)
def test_bad_data_are_refused_in_a_sentence(given, sentence):
    with pytest.raises(PyrocrowdError, match=sentence):
        conal(**given)


# -------------------------------------------------------------------- to disk and back


def test_a_saved_crowd_is_read_back_whole(tmp_path):
    made = conal(**SMALL, seed=np.int64(5))
    assert made.save(tmp_path / "made") == tmp_path / "made"
    splits = ("crowd", None), ("valid", "valid"), ("test", "test")
    for name, split in splits:
        assert same(Crowd.read(tmp_path / "made", split=split), getattr(made, name))
    found = hidden(tmp_path / "made")
    assert set(found) == {*made.hidden, "confusion", "annotator_names"}
    assert all(np.array_equal(found[name], array) for name, array in made.hidden.items())
    assert np.array_equal(found["confusion"], made.confusion)
    record = json.loads((tmp_path / "made" / "simulation.json").read_text())
    assert (record["simulator"], record["seed"]) == ("conal", 5)
    again = conal(**record["arguments"], seed=record["seed"])
    assert alike(made, again)


def test_names_and_classes_that_nobody_gave_survive(tmp_path):
    never = np.tile([1.0, 0, 0], (2, 3, 1))  # everybody always says "no"
    made = from_confusions(
        [0, 1, 2], never, 2, item_names=["z", "a", "m"], annotator_names=["007", "é"], class_names=["no", "yes", "NA"]
    )
    made.save(tmp_path / "made")
    found = Crowd.read(tmp_path / "made")
    assert found.item_names.tolist() == ["z", "a", "m"] and found.class_names.tolist() == ["no", "yes", "NA"]
    assert found.to_frame().equals(made.crowd.to_frame()) and found.truth.tolist() == [0, 1, 2]
    assert hidden(tmp_path / "made")["annotator_names"].tolist() == ["007", "é"]
    assert sorted(contents(tmp_path / "made")) == [
        "annotations.csv", "classes.txt", "hidden.npz", "simulation.json", "tasks.txt", "truth_train.csv"
    ]  # fmt: skip


def test_an_annotator_without_labels_is_still_found_in_the_hidden_truth(tmp_path):
    made = conal(items=10, annotators=200, labels_per_item=1)
    made.save(tmp_path / "made")
    found, crowd = hidden(tmp_path / "made"), Crowd.read(tmp_path / "made")
    place = np.searchsorted(found["annotator_names"], crowd.annotator_names)
    assert crowd.n_annotators < 200 == len(found["individual"])
    assert np.array_equal(crowd.annotator_names[crowd.annotator], made.crowd.annotator)
    assert np.array_equal(found["annotator_names"][place], crowd.annotator_names)


def test_the_digits_can_be_saved_too(tmp_path):
    made = sets.digits(items=50)
    made.save(tmp_path / "made")
    assert same(Crowd.read(tmp_path / "made"), made.crowd)


def test_a_folder_with_something_in_it_is_refused_and_force_replaces_only_simulations(tmp_path):
    place, made = tmp_path / "made", conal(**SMALL)
    made.save(place)
    (place / "notes.txt").write_text("mine")
    before = contents(place)
    with pytest.raises(PyrocrowdError, match="already holds a simulated crowd"):
        made.save(place)
    assert contents(place) == before
    from_confusions([0, 1], np.eye(2)[None], 1).save(place, force=True)
    assert not (place / "features_train.npy").exists() and (place / "notes.txt").read_text() == "mine"
    assert Crowd.read(place).n_items == 2
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "annotations.csv").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, sentence in (("own", "holds other files and no simulated crowd"), ("file", "is a file, not a folder")):
        with pytest.raises(PyrocrowdError, match=sentence):
            made.save(tmp_path / name, force=True)
    assert (tmp_path / "own" / "annotations.csv").read_text() == "mine"


@pytest.mark.parametrize("fails_in", ["write", "swap"])
def test_a_failure_leaves_nothing_half_written(tmp_path, monkeypatch, fails_in):
    place, made = tmp_path / "made", conal(**SMALL)
    made.save(place)
    before = contents(place)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    if fails_in == "write":
        monkeypatch.setattr(np, "savez_compressed", fail)
        with pytest.raises(OSError):
            made.save(tmp_path / "new" / "place")
    else:  # half of the new files are in their place when the disk is full
        move, calls = folders.Path.rename, []
        monkeypatch.setattr(
            folders.Path, "rename", lambda path, to: fail() if calls.append(to) or len(calls) == 14 else move(path, to)
        )
    with pytest.raises(OSError):
        conal(**SMALL, seed=1).save(place, force=True)
    assert contents(place) == before and [path.name for path in tmp_path.iterdir()] == ["made"]


def test_hidden_truth_that_is_not_there_or_broken_is_a_sentence(tmp_path):
    with pytest.raises(PyrocrowdError, match="holds no hidden truth: there is no hidden.npz"):
        hidden(tmp_path)
    (tmp_path / "hidden.npz").write_text("no archive")
    with pytest.raises(PyrocrowdError, match="hidden.npz cannot be read"):
        hidden(tmp_path)


# -------------------------------------------------------------------- the command


def test_every_registered_simulator_explains_itself_and_each_of_its_flags():
    for name, simulator in SIMULATORS.items():
        assert simulator.__name__ == name and summary(simulator).endswith(".")
        assert all(text.endswith(".") and len(text) < 160 for _, _, text in flags(simulator))
    assert {"features", "truth"}.isdisjoint(flag for flag, _, _ in flags(conal))


def test_help_lists_the_simulators_and_all_flags(run):
    shown = run("simulate", "--help")
    assert all(name in shown and summary(simulator) in shown for name, simulator in SIMULATORS.items())
    for name, simulator in SIMULATORS.items():
        shown = run("simulate", name, "--help")
        words = shown.split()
        assert {"--out", "--force", "--seed"} <= set(words)
        for flag, _, text in flags(simulator):
            assert f"--{flag.replace('_', '-')}" in words and text.split(":")[0] in shown
    assert "simulate" in run("--help")


@pytest.mark.parametrize("words", [["simulate", "--help"], ["simulate", "conal", "--help"]])
def test_help_imports_neither_torch_nor_pandas(words):
    script = (
        "import sys\nfrom pyrocrowd.cli import main\nsys.argv = ['pyrocrowd', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert "Usage" in done.stdout and done.stdout.splitlines()[-1] == "False False", done.stderr


def test_the_command_writes_what_the_function_makes_and_a_fit_reads_it(run):
    words = ("--items", 300, "--annotators", 9, "--strength", 0.4, "--proportion", 0.3, "--kind", "symmetric")
    printed = run("simulate", "conal", *words, "--seed", 7, "--out", "my crowd")
    made = conal(items=300, annotators=9, strength=0.4, proportion=0.3, kind="symmetric", seed=7)
    assert same(Crowd.read("my crowd"), made.crowd)
    assert np.array_equal(hidden("my crowd")["omega"], made.hidden["omega"])
    assert "Crowd: 720 labels by 9 annotators on 240 items in 6 classes" in printed
    assert "Written to my crowd" in printed and "pyrocrowd fit dawid_skene 'my crowd' --out run" in printed
    run("fit", "dawid_skene", "my crowd", "--out", "run", "--engine", "em")
    assert store.read_record("run")["metrics"]["accuracy"] > 0.7


def test_bad_input_ends_the_command_with_a_sentence_each(run, tmp_path):
    said = run("simulate", "conal", "--strength", 2, "--annotators", 2, "--out", "made", code=2)
    assert said.splitlines() == [
        "error: 3 labels per item cannot come from 2 different annotators.",
        "error: strength must be a number from 0 to 1, not 2.0.",
    ]
    assert "conall" in run("simulate", "conall", "--out", "made", code=2)
    assert "--out" in run("simulate", "conal", code=2)
    assert not list(tmp_path.iterdir())


def test_a_crowd_that_is_there_is_replaced_only_by_force(run, tmp_path):
    words = ("simulate", "conal", "--items", 50, "--annotators", 5, "--out", "made")
    run(*words)
    before = contents(tmp_path / "made")
    assert "made already holds a simulated crowd" in run(*words, "--seed", 1, code=2)
    assert contents(tmp_path / "made") == before
    run(*words, "--seed", 1, "--force")
    assert same(Crowd.read("made"), conal(items=50, annotators=5, seed=1).crowd)
