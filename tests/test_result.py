"""A fit: tables, names, save and load."""

import json

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from stories import Classifier

import pyrocrowd
from pyrocrowd import MAP, SVI, Confused, Crowd, PyrocrowdError, metrics
from pyrocrowd.data.sets import digits
from pyrocrowd.store import fingerprint


@pytest.fixture(scope="module")
def made_up():
    return digits(items=400)


@pytest.fixture(scope="module")
def fit(made_up):
    return pyrocrowd.fit("dawid_skene", made_up.crowd, SVI(steps=600, draws=100))


def test_labels_hold_the_likeliest_class_and_its_probability(fit):
    table = fit.labels()
    assert (table["label"] == fit.predict()).all()
    probabilities = table[[str(name) for name in range(10)]].to_numpy()
    assert np.allclose(probabilities, fit.truth) and np.allclose(probabilities.max(1), table["confidence"])
    assert (table["item"] == fit.crowd.item_names).all()


def test_skill_orders_annotators_as_the_truth_does(fit, made_up):
    table = fit.annotators().set_index("annotator")
    true = dict(zip(made_up.crowd.annotator_names, metrics.skill(made_up.confusion), strict=True))
    best, worst = ("ada", "ben", "cleo", "dov"), ("jo", "kim")
    assert table.loc[list(best), "skill"].min() > table.loc[list(worst), "skill"].max() + 0.3
    assert np.corrcoef(table["skill"], [true[name] for name in table.index])[0, 1] > 0.9
    assert table["n_labels"].sum() == made_up.crowd.n_annotations


def test_the_most_frequent_confusion_is_the_one_that_was_put_in(fit):
    table = fit.annotators().set_index("annotator")
    assert table.loc["hal", "most_frequent_confusion"] in ("4 -> 9", "1 -> 7")
    assert table.loc["lou", "most_frequent_confusion"] in ("3 -> 8", "8 -> 3")
    three_for_eight = fit.confusion().sel(truth=3, label=8)
    assert three_for_eight.sel(annotator="lou") > three_for_eight.sel(annotator="ada") + 0.3


def test_a_wider_interval_holds_a_narrower_one(fit):
    narrow, wide = fit.annotators(interval=0.5), fit.annotators(interval=0.95)
    assert (wide["skill_low"] <= narrow["skill_low"]).all() and (wide["skill_high"] >= narrow["skill_high"]).all()


def test_the_interval_of_a_point_estimate_shrinks_with_the_labels():
    crowd = Crowd.from_matrix(np.array([[0, 0, 0]] * 200 + [[1, 1, -1]] * 200))
    table = pyrocrowd.fit("dawid_skene", crowd.keep(~((crowd.annotator == 1) & (crowd.item > 10)))).annotators()
    width = table["skill_high"] - table["skill_low"]
    assert width[0] < width[1]


@pytest.mark.parametrize("engine", ["em", "map", "svi"])
def test_a_saved_fit_comes_back_equal(engine, made_up, tmp_path):
    settings = {"em": pyrocrowd.EM(max_iter=20), "map": MAP(steps=20), "svi": SVI(steps=20, draws=30)}[engine]
    fit = pyrocrowd.fit("dawid_skene", made_up.crowd, settings, seed=7, strength=2.0)
    again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert again.labels().equals(fit.labels()) and again.annotators().equals(fit.annotators())
    assert all((again.draws[name] == fit.draws[name]).all() for name in fit.draws)
    assert (again.pointwise == fit.pointwise).all() and again.losses == fit.losses
    assert again.metrics() == fit.metrics() and again.notes == fit.notes
    assert again.hyper_parameters == fit.hyper_parameters and again.engine == fit.engine and again.seed == 7
    assert fingerprint(again.crowd) == fingerprint(fit.crowd)
    assert repr(again) == repr(fit)
    resaved = pyrocrowd.load(again.save(tmp_path / "second"))
    assert resaved.labels().equals(fit.labels())


def test_a_saved_classifier_labels_new_items_without_its_source_file(made_up, tmp_path, monkeypatch):
    source = tmp_path / "my_classifier.py"
    source.write_text((__import__("pathlib").Path(__file__).parent / "stories.py").read_text())
    train, test = made_up.crowd.split(0.7)
    fit = pyrocrowd.fit(f"{source}:Classifier", train, MAP(epochs=3, batch_size=64), net="mlp")
    folder = fit.save(tmp_path / "run")
    source.unlink()
    moved = folder.rename(tmp_path / "elsewhere")
    again = pyrocrowd.load(moved)
    assert np.allclose(again.predict_proba(test.features), fit.predict_proba(test.features), atol=1e-6)


def test_a_function_from_a_notebook_takes_its_helpers_and_imports_along(made_up, tmp_path):
    notebook = {}
    source = """
import torch
import pyro
import pyro.distributions as dist
from pyrocrowd import Confused

FLOOR = 0.3

def matrix(net, classes):
    return torch.eye(classes) * 2 + FLOOR

def story(crowd, width=1.0):
    weight = pyro.param("weight", torch.zeros(64, 10))
    with crowd.annotators:
        confusion = pyro.sample("confusion", dist.Dirichlet(matrix(None, crowd.n_classes) * width).to_event(1))
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(logits=crowd.features @ weight))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)
"""
    story = _as_in_a_notebook(source, notebook)
    fit = pyrocrowd.fit(story, made_up.crowd, MAP(steps=30))
    folder = fit.save(tmp_path / "run")
    saved = (folder / "model.py").read_text()
    assert "import pyro.distributions as dist" in saved and "def matrix" in saved and "FLOOR = 0.3" in saved
    again = pyrocrowd.load(folder)
    assert np.allclose(again.predict_proba(made_up.crowd.features), fit.predict_proba(made_up.crowd.features))


def _as_in_a_notebook(source, names):
    """Run source as a notebook cell does: in `__main__`, with its lines known to inspect."""
    import linecache
    import sys

    file = "<ipython-input-1>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    main = sys.modules["__main__"]
    before = set(vars(main))
    exec(compile(source, file, "exec"), vars(main))
    story = main.story
    names.update({name: getattr(main, name) for name in set(vars(main)) - before})
    return story


def test_labelling_new_items_needs_a_classifier_and_fitting_features(fit, made_up):
    with pytest.raises(PyrocrowdError, match="has no classifier"):
        fit.predict(made_up.crowd.features)
    classifier = pyrocrowd.fit(Classifier, made_up.crowd, MAP(steps=2))
    with pytest.raises(PyrocrowdError, match=r"shape \(63,\)"):
        classifier.predict_proba(made_up.crowd.features[:, 1:])


def test_predictions_do_not_change_the_fit(made_up):
    fit = pyrocrowd.fit(Classifier, made_up.crowd, MAP(steps=5), net="mlp")
    first = fit.predict_proba(made_up.crowd.features)
    assert (first == fit.predict_proba(made_up.crowd.features)).all()


def test_what_a_model_records_is_part_of_the_posterior(made_up, tmp_path):
    def recorded(crowd):
        with crowd.annotators:
            accuracy = pyro.sample("accuracy", dist.Beta(2.0, 1.0))
        wrong = (1 - accuracy)[:, None, None] / (crowd.n_classes - 1)
        confusion = pyro.deterministic("confusion", wrong + torch.eye(10) * (accuracy[:, None, None] - wrong))
        with crowd.items:
            truth = pyro.sample("truth", dist.Categorical(torch.full((10,), 0.1)))
            with crowd.annotations as annotator:
                pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)

    fit = pyrocrowd.fit(recorded, made_up.crowd, SVI(steps=300, draws=50))
    accuracy = fit.draws["accuracy"].mean((0, 1))
    assert np.allclose(np.diagonal(fit.confusion().values, axis1=1, axis2=2).mean(1), accuracy, atol=1e-6)
    again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert (again.draws["confusion"] == fit.draws["confusion"]).all()


def test_a_fit_introduces_itself(fit):
    assert repr(fit).startswith("Fit of dawid_skene by SVI to 1,200 labels: log-likelihood -")
    assert "accuracy" in fit._repr_html_()


def test_run_json_holds_everything_a_reader_asks(fit, tmp_path):
    record = json.loads((fit.save(tmp_path / "run") / "run.json").read_text())
    assert record["engine"]["steps"] == 600 and record["model"]["name"] == "dawid_skene"
    assert record["metrics"]["accuracy"] == pytest.approx(metrics.accuracy(fit.crowd.truth, fit.truth))
    assert {"python", "torch", "pyro", "arviz"} <= set(record["versions"])
    assert record["data"]["annotations"] == 1200 and len(record["data"]["fingerprint"]) == 64


def test_the_fingerprint_forgets_the_order_of_rows_and_notices_a_change(made_up):
    crowd = made_up.crowd
    shuffled = crowd.keep(np.random.default_rng(0).permutation(crowd.n_annotations))
    changed = crowd._with(label=np.where(np.arange(crowd.n_annotations) == 0, (crowd.label + 1) % 10, crowd.label))
    assert fingerprint(shuffled) == fingerprint(crowd) != fingerprint(changed)


def test_nothing_is_overwritten_unless_forced_and_strange_folders_never(fit, tmp_path):
    folder = fit.save(tmp_path / "run")
    with pytest.raises(PyrocrowdError, match="already holds a run"):
        fit.save(folder)
    fit.save(folder, force=True)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.txt").write_text("keep me")
    with pytest.raises(PyrocrowdError, match="holds other files"):
        fit.save(other, force=True)
    assert (other / "holiday.txt").read_text() == "keep me"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["photos", "run"]


def test_classes_named_like_a_column_keep_a_column_of_their_own():
    labels = pyrocrowd.Crowd.from_frame(
        {"item": [1, 1, 2], "annotator": ["a", "b", "a"], "label": ["label", "class label", "label"]}
    )
    table = pyrocrowd.fit("majority_vote", labels).labels()
    assert list(table.columns) == ["item", "label", "confidence", "class label", "class class label"]
    assert np.allclose(table.iloc[:, 3:].to_numpy().sum(1), 1) and table.columns.is_unique


def test_a_model_from_a_file_can_be_loaded_and_saved_again(made_up, tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("from pyrocrowd.models.dawid_skene import dawid_skene as base, m_step\n\n\n")
    source.write_text(
        source.read_text() + "def mine(crowd, strength=2.0, smoothing=None):\n    base(crowd, strength)\n"
    )
    first = pyrocrowd.fit(str(source), made_up.crowd, pyrocrowd.EM(max_iter=3)).save(tmp_path / "first")
    source.unlink()
    second = pyrocrowd.load(first).save(tmp_path / "second")
    assert (second / "model.py").read_text() == (first / "model.py").read_text()
