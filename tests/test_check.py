"""Every mistake that a model author can make gets one sentence."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from stories import Classifier

from pyrocrowd import Confused, Crowd, PyrocrowdError, fit, zoo
from pyrocrowd.check import examine


def half():
    return torch.full((2,), 0.5)


def matrices(crowd):
    return torch.full((crowd.n_annotators, 2, 2), 0.5)


def no_label(crowd):
    with crowd.items:
        pyro.sample("truth", dist.Categorical(half()))


def no_truth(crowd):
    with crowd.items, crowd.annotations:
        pyro.sample("label", dist.Categorical(half()), obs=crowd.label)


def flat_plate(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(half()))
    item = torch.zeros(4).long()
    with pyro.plate("rows", 4, dim=-1):
        pyro.sample("label", dist.Categorical(matrices(crowd)[0][truth[..., item]]), obs=torch.zeros(4).long())


def label_in_items(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(half()))
        pyro.sample("label", dist.Categorical(matrices(crowd)[0][truth]), obs=crowd.label[0])


def not_observed(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(half()))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(matrices(crowd), annotator, truth))


def other_data(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(half()))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(matrices(crowd), annotator, truth), obs=1 - crowd.label)


def same_name_twice(crowd):
    with crowd.items:
        pyro.sample("truth", dist.Categorical(half()))
        pyro.sample("truth", dist.Categorical(half()))


def wrong_shape(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(torch.full((17, 2), 0.5)))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(matrices(crowd), annotator, truth), obs=crowd.label)


def too_many_classes(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(torch.ones(3) / 3))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(torch.full((2, 3, 2), 0.5), annotator, truth), obs=crowd.label)


def truth_outside(crowd):
    truth = pyro.sample("truth", dist.Categorical(half()))
    with crowd.items, crowd.annotations as annotator:
        pyro.sample("label", Confused(matrices(crowd), annotator, truth), obs=crowd.label)


def group_of_annotator(crowd):
    with crowd.annotators:
        pyro.sample("group", dist.Categorical(half()))
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(half()))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(matrices(crowd), annotator, truth), obs=crowd.label)


def endless(crowd):
    with crowd.items:
        pyro.sample("count", dist.Poisson(3.0))
        truth = pyro.sample("truth", dist.Categorical(half()))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(matrices(crowd), annotator, truth), obs=crowd.label)


def noise_of_annotation(crowd):
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(half()))
        with crowd.annotations as annotator:
            pyro.sample("noise", dist.Normal(0.0, 1.0))
            pyro.sample("label", Confused(matrices(crowd), annotator, truth), obs=crowd.label)


def short_truth_probs(crowd):
    pyro.deterministic("truth_probs", half())
    with crowd.items, crowd.annotations:
        pyro.sample("label", dist.Categorical(half()), obs=crowd.label)


def broken(crowd):
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (no_label, "draws no site `label`"),
        (no_truth, "neither a site `truth` nor a recorded `truth_probs`"),
        (flat_plate, "silently wrong"),
        (label_in_items, "inside `crowd.annotations` inside `crowd.items`"),
        (not_observed, "obs=crowd.label"),
        (other_data, "other data than crowd.label"),
        (same_name_twice, "two sites have the same name"),
        (wrong_shape, "shapes do not fit"),
        (too_many_classes, "`truth` has 3 values and the crowd has 2 classes"),
        (truth_outside, "`truth` must be drawn inside `crowd.items`"),
        (group_of_annotator, "one discrete value for each annotator"),
        (endless, "cannot be summed out"),
        (noise_of_annotation, "for every single annotation"),
        (short_truth_probs, "`truth_probs` has shape (2,)"),
        (broken, "does not run: KeyError"),
    ],
)
def test_a_broken_contract_is_named_in_one_sentence(model, sentence, tiny):
    with pytest.raises(PyrocrowdError) as caught:
        fit(model, tiny)
    said = [problem for problem in caught.value.problems if sentence in problem]
    assert len(said) == 1 and said[0].startswith(f"{model.__name__}: ") and "\n" not in said[0]


def test_a_crowd_itself_is_no_batch_and_says_so(tiny):
    with pytest.raises(PyrocrowdError, match=r"model\(crowd.batch\(\)\)"):
        no_truth(tiny)


def test_unknown_hyper_parameters_are_all_named_with_a_suggestion(tiny):
    with pytest.raises(PyrocrowdError) as caught:
        fit("dawid_skene", tiny, strenght=1.0, smoth=2)
    assert len(caught.value.problems) == 2
    assert "Did you mean 'strength'?" in caught.value.problems[0]


def test_a_model_that_needs_features_says_so():
    crowd = Crowd.from_matrix([[0, 1], [1, 1]])
    with pytest.raises(PyrocrowdError, match="features"):
        fit(Classifier, crowd)


def test_the_anatomy_of_a_classifier(tiny):
    anatomy = examine(Classifier(tiny).double(), tiny)
    assert anatomy.reads_features and not anatomy.redraws_truth
    assert list(anatomy.latent) == ["confusion"] and anatomy.in_annotators == {"confusion": 2}
    assert anatomy.enumerated == {"truth": "items"}


def test_models_are_found_by_every_kind_of_name(tmp_path):
    source = "from pyrocrowd.models.dawid_skene import dawid_skene as base, m_step\n\n\n"
    source += "def story(crowd, strength=2.0):\n"
    source += '    """My own."""\n    base(crowd, strength)\n'
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert zoo.find("dawid_skene").m_step is not None
    assert zoo.find(str(path)).hyper_parameters == {"strength": 2.0}
    assert zoo.find(f"{path}:story").summary == "My own."
    assert zoo.find("pyrocrowd.models.majority_vote:majority_vote").name == "majority_vote"
    assert zoo.find(no_truth).target is no_truth
    with pytest.raises(PyrocrowdError, match="Did you mean 'dawid_skene'"):
        zoo.find("david_skene")
    with pytest.raises(PyrocrowdError, match="story"):
        zoo.find(f"{path}:stroy")


def test_other_packages_add_models_through_entry_points(monkeypatch):
    from importlib.metadata import EntryPoint

    point = EntryPoint("their_model", "pyrocrowd.models.majority_vote:majority_vote", zoo.ENTRY_POINTS)
    monkeypatch.setattr(zoo, "entry_points", lambda group: [point] if group == "pyrocrowd.models" else [])
    assert "their_model" in zoo.names()
    assert zoo.find("their_model").hyper_parameters == {"vote": "soft"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strength": -1}, "strength must be a number of at least 0.01, not -1."),
        ({"strength": "abc"}, "strength must be a number of at least 0.01, not 'abc'."),
        ({"strength": None}, "strength must be a number of at least 0.01, not None."),
        ({"smoothing": -1}, "smoothing must be a number of at least 0, not -1."),
        (
            {"likelihood": "joined"},
            "likelihood must be one of joint, per_annotation, not 'joined'. Did you mean 'joint'?",
        ),
    ],
)
def test_impossible_hyper_parameters_are_refused_in_one_sentence(options, sentence, tiny):
    with pytest.raises(PyrocrowdError) as caught:
        fit("dawid_skene", tiny, **options)
    assert caught.value.problems == [sentence]


def test_a_keyword_that_fit_takes_itself_is_refused(tiny):
    def story(crowd, seed=3):
        no_truth(crowd)

    with pytest.raises(PyrocrowdError, match="`seed` is an argument of fit itself"):
        fit(story, tiny)


def test_two_files_of_the_same_name_stay_two_models(tmp_path):
    texts = []
    for place, default in (("a: one", 1.0), ("b", 2.0)):
        path = tmp_path / place / "model.py"
        path.parent.mkdir()
        path.write_text(f"def story(crowd, value={default}):\n    pass\n")
        texts.append(zoo.find(f"{path}:story"))
    assert [model.hyper_parameters["value"] for model in texts] == [1.0, 2.0]
    assert ["value=1.0" in zoo.source_of(texts[0]), "value=2.0" in zoo.source_of(texts[1])] == [True, True]
