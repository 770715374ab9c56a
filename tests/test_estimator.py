"""`CrowdClassifier` keeps scikit-learn's promises, and is worth more than a classifier trained on majority vote."""

import pickle

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyrocrowd import MAP, Confused, CrowdClassifier, PyrocrowdError, metrics, nets
from pyrocrowd.data.sets import digits

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


class Network(PyroModule):
    """A network guesses the truth from the features; every annotator has a confusion matrix."""

    def __init__(self, crowd, backbone="linear"):
        super().__init__()
        self.net = nets.backbone(backbone, crowd)

    def forward(self, crowd):
        prior = torch.ones(crowd.n_classes, crowd.n_classes) + 4 * torch.eye(crowd.n_classes)
        with crowd.annotators:
            confusion = pyro.sample("confusion", dist.Dirichlet(prior).to_event(1))
        with crowd.items:
            truth = pyro.sample("truth", dist.Categorical(logits=self.net(crowd.features)))
            with crowd.annotations as annotator:
                pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)


def digits_crowd(items=600, labels_per_item=5, seed=0):
    """Features, labels as a matrix and truth of the crowd; features and truth of the digits that it did not see."""
    crowd = digits(items, labels_per_item, seed).crowd
    Y = np.full((items, crowd.n_annotators), -1)
    Y[crowd.item, crowd.annotator] = crowd.label
    pictures = load_digits()
    unseen = np.random.default_rng(seed).permutation(len(pictures.target))[items:]
    return crowd.features, Y, crowd.truth, (pictures.data[unseen] / 16).astype(np.float32), pictures.target[unseen]


@pytest.fixture(scope="module")
def crowd():
    return digits_crowd(items=300)


@pytest.fixture(scope="module")
def fitted(crowd):
    X, Y, *_ = crowd
    return CrowdClassifier().fit(X, Y)


@pytest.fixture
def network(crowd):
    X, Y, *_ = crowd
    return CrowdClassifier(Network, MAP(steps=150, learning_rate=0.05)).fit(X, Y)


# ---------------------------------------------------------------- scikit-learn's own checks

EXCEPTIONS = {
    "check_supervised_y_2d": "wants a warning that a column should be a vector; here it is one annotator of a crowd"
}


@parametrize_with_checks(
    [CrowdClassifier(), CrowdClassifier("majority_vote")], expected_failed_checks=lambda estimator: EXCEPTIONS
)
def test_every_check_of_scikit_learn_that_applies_passes(estimator, check):
    check(estimator)


def test_a_column_is_the_same_as_a_vector(crowd):
    """What is left of the check that is excepted above."""
    X, Y, *_ = crowd
    vector, column = (CrowdClassifier("majority_vote").fit(X, one) for one in (Y.max(1), Y.max(1)[:, None]))
    np.testing.assert_array_equal(vector.predict_proba(X), column.predict_proba(X))


# ---------------------------------------------------------------- worth


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_with_bad_annotators_teaches_more_than_its_majority_vote(seed):
    X, Y, truth, unseen, answers = digits_crowd(seed=seed)
    ours = CrowdClassifier().fit(X, Y)
    soft_vote = CrowdClassifier("majority_vote").fit(X, Y)
    winner = soft_vote.truth_.argmax(1)
    hard_vote = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, winner)
    assert ours.score(unseen, answers) > hard_vote.score(unseen, answers)
    assert ours.score(unseen, answers) > soft_vote.score(unseen, answers)
    assert metrics.accuracy(truth, ours.truth_) > metrics.accuracy(truth, soft_vote.truth_)
    assert ours.score(unseen, answers) > 0.88


def test_a_network_learns_the_digits_by_map_and_predicts_without_another_classifier(crowd, network):
    _, _, truth, unseen, answers = crowd
    assert network.classifier_ is None and network.fit_.anatomy.reads_features
    np.testing.assert_array_equal(network.predict_proba(unseen), network.fit_.predict_proba(unseen))
    np.testing.assert_array_equal(network.predict(unseen), network.predict_proba(unseen).argmax(1))
    assert network.score(unseen, answers) > 0.8
    assert metrics.accuracy(truth, network.truth_) > 0.9


# ---------------------------------------------------------------- learning softly


def test_every_item_counts_for_each_class_with_its_posterior_probability():
    """Two annotators who disagree on one item of three: by soft vote it is half of each class."""
    X, Y = np.array([[0.0], [2.0], [5.0]]), np.array([[0, 0], [1, 1], [0, 1]])
    ours = CrowdClassifier("majority_vote", classifier=GaussianNB()).fit(X, Y)
    np.testing.assert_allclose(ours.truth_, [[1, 0], [0, 1], [0.5, 0.5]])
    np.testing.assert_allclose(ours.classifier_.theta_[:, 0], [2.5 / 1.5, 4.5 / 1.5])
    np.testing.assert_allclose(ours.classifier_.class_count_, [1.5, 1.5])


def test_standardisation_uses_the_weights_too():
    """Otherwise an item in doubt would count once for every class it might have."""
    X, Y = np.array([[0.0], [2.0], [5.0]]), np.array([[0, 0], [1, 1], [0, 1]])
    ours = CrowdClassifier("majority_vote").fit(X, Y)
    np.testing.assert_allclose(ours.classifier_["standardscaler"].mean_, X.mean())


def test_items_without_labels_are_not_learned_from(crowd):
    X, Y, *_ = crowd
    more_X, more_Y = np.vstack([X, X[:50] + 9]), np.vstack([Y, np.full_like(Y[:50], -1)])
    alone, together = (CrowdClassifier("majority_vote").fit(*pair) for pair in ((X, Y), (more_X, more_Y)))
    assert together.truth_.shape == (350, 10)
    np.testing.assert_allclose(together.predict_proba(X), alone.predict_proba(X), atol=1e-6)


def test_a_class_that_is_nobodys_truth_has_probability_zero(crowd):
    X, Y, *_ = crowd
    Y = np.where(Y >= 5, 1, 0) * (Y >= 0) - (Y < 0)
    Y[0, Y[0] >= 0] = [0, 0, 0, 0, 2]
    ours = CrowdClassifier("majority_vote", hyper_parameters={"vote": "hard"}).fit(X, Y)
    np.testing.assert_array_equal(ours.classes_, [0, 1, 2])
    np.testing.assert_array_equal(ours.predict_proba(X)[:, 2], 0)
    np.testing.assert_allclose(ours.predict_proba(X).sum(1), 1)


def test_a_classifier_without_probabilities_still_predicts(crowd):
    X, Y, _, unseen, answers = crowd
    ours = CrowdClassifier(classifier=LinearSVC()).fit(X, Y)
    assert ours.score(unseen, answers) > 0.8
    with pytest.raises(AttributeError, match="predict_proba"):
        ours.predict_proba(unseen)


def test_a_classifier_that_takes_no_weights_is_refused(crowd):
    X, Y, *_ = crowd
    with pytest.raises(TypeError, match="sample_weight"):
        CrowdClassifier(classifier=KNeighborsClassifier()).fit(X, Y)


def test_the_classifier_that_was_given_stays_unfitted(crowd):
    X, Y, *_ = crowd
    given = GaussianNB(var_smoothing=0.1)
    ours = CrowdClassifier(classifier=given).fit(X, Y)
    assert ours.classifier is given and not hasattr(given, "classes_")
    assert ours.classifier_.var_smoothing == 0.1


def test_images_are_read_whole_by_networks_and_as_vectors_by_classifiers(crowd, fitted, network):
    X, Y, _, unseen, _ = crowd
    images, new = X.reshape(-1, 8, 8), unseen.reshape(-1, 8, 8)
    np.testing.assert_array_equal(CrowdClassifier().fit(images, Y).predict(new), fitted.predict(unseen))
    by_images = clone(network).fit(images, Y)
    assert by_images.fit_.crowd.feature_shape == (8, 8)
    np.testing.assert_allclose(by_images.predict_proba(new), network.predict_proba(unseen), atol=1e-4)


# ---------------------------------------------------------------- ways to write labels


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_sparse_labels_equal_dense_ones_and_a_stored_zero_is_a_label(crowd, fitted, form):
    X, Y, _, unseen, _ = crowd
    item, annotator = np.nonzero(Y >= 0)
    stored = form(sparse.coo_array((Y[item, annotator], (item, annotator)), shape=Y.shape))
    assert (stored.tocoo().data == 0).any()
    ours = CrowdClassifier().fit(X, stored)
    np.testing.assert_allclose(ours.truth_, fitted.truth_, atol=1e-8)
    np.testing.assert_array_equal(ours.predict(unseen), fitted.predict(unseen))
    assert ours.score(X, stored) == fitted.score(X, Y)


@pytest.mark.parametrize("missing", ["", "-1", -1, None, np.nan])
def test_names_give_the_predictions_of_numbers_however_missing_is_written(crowd, missing):
    X, Y, _, unseen, answers = crowd
    named = NAMES[Y].astype(object)
    named[Y < 0] = missing
    ours = CrowdClassifier("majority_vote").fit(X, named)
    numbers = CrowdClassifier("majority_vote").fit(X, Y)
    np.testing.assert_array_equal(ours.classes_, np.sort(NAMES))
    np.testing.assert_allclose(ours.truth_, numbers.truth_[:, np.argsort(NAMES)])
    assert (ours.predict(unseen) == NAMES[numbers.predict(unseen)]).mean() > 0.99
    assert ours.score(unseen, NAMES[answers]) == pytest.approx(numbers.score(unseen, answers), abs=0.01)
    as_list = CrowdClassifier("majority_vote").fit(X, named.tolist())
    np.testing.assert_array_equal(as_list.classes_, ours.classes_)
    np.testing.assert_array_equal(as_list.predict(unseen), ours.predict(unseen))


def test_a_frame_of_labels_names_the_annotators(crowd, fitted):
    X, Y, *_ = crowd
    people = [f"annotator {letter}" for letter in "abcdefghijkl"]
    frame = pd.DataFrame(Y, columns=people).astype("Int64").mask(Y < 0)
    ours = CrowdClassifier().fit(X, frame)
    assert ours.fit_.annotators()["annotator"].tolist() == people
    np.testing.assert_allclose(ours.truth_, fitted.truth_, atol=1e-8)


def test_minus_one_is_missing_except_beside_one_in_a_vector():
    X = np.arange(8.0)[:, None]
    y = np.array([-1, -1, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(CrowdClassifier("majority_vote").fit(X, y).classes_, [0, 1])
    for signed in (np.where(X[:, 0] < 4, -1, 1), np.where(X[:, 0] < 4, -1, 1).tolist()):
        ours = CrowdClassifier("majority_vote").fit(X, signed)
        np.testing.assert_array_equal(ours.predict(X), signed)
        assert ours.score(X, signed) == 1
    with pytest.raises(PyrocrowdError, match="All labels are 1.* one class .*-1 means no label"):
        CrowdClassifier("majority_vote").fit(X, np.where(X < [4, 2], -1, 1))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.full((4, 2), -1), "every entry is missing"),
        (np.full((4, 2), np.nan), "every entry is missing"),
        (np.array([[0, 1], [1, 0], [1, 1]]), "inconsistent numbers of samples"),
        (np.array([[0.5, 1.5], [0.25, 1], [1, 1], [1, 0]]), "Unknown label type"),
        (None, "requires y to be passed"),
    ],
)
def test_labels_that_teach_nothing_are_refused_with_their_reason(labels, message):
    with pytest.raises(ValueError, match=message):
        CrowdClassifier().fit(np.arange(4.0)[:, None], labels)


# ---------------------------------------------------------------- score


def test_score_against_a_crowd_is_the_share_of_given_labels_that_equal_the_prediction():
    X = np.arange(6.0)[:, None]
    ours = CrowdClassifier("majority_vote").fit(X, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(ours.predict(X), [0, 0, 0, 1, 1, 1])
    Y = np.array([[0, 0, -1], [1, -1, -1], [-1, -1, -1], [1, 1, 0], [-1, 1, -1], [1, -1, -1]])
    assert ours.score(X, Y) == pytest.approx(6 / 8)
    assert ours.score(X, Y, sample_weight=[1, 2, 1, 1, 1, 0]) == pytest.approx(5 / 8)
    assert ours.score(X, np.array([0, 1, -1, 1, 1, -1])) == pytest.approx(3 / 4)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ours.score(X, Y[:5])


def test_score_against_true_labels_is_accuracy(crowd, fitted):
    *_, unseen, answers = crowd
    assert fitted.score(unseen, answers) == pytest.approx((fitted.predict(unseen) == answers).mean())


# ---------------------------------------------------------------- inside scikit-learn


def test_a_clone_has_the_settings_and_nothing_learned(network, crowd):
    X, *_ = crowd
    copy = clone(network)
    assert copy.model is Network and copy.engine == network.engine
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_a_fitted_network_survives_pickling(crowd, network):
    *_, unseen, _ = crowd
    again = pickle.loads(pickle.dumps(network))
    np.testing.assert_array_equal(again.predict_proba(unseen), network.predict_proba(unseen))


def test_a_pipeline_passes_its_features_on(crowd, fitted):
    X, Y, _, unseen, answers = crowd
    pipeline = make_pipeline(StandardScaler(), CrowdClassifier()).fit(X, Y)
    np.testing.assert_array_equal(pipeline.predict(unseen), fitted.predict(unseen))  # standardised twice is once
    assert pipeline.score(unseen, answers) == fitted.score(unseen, answers)


def test_a_grid_search_over_noisy_labels_finds_the_better_settings(crowd):
    X, Y, _, unseen, answers = crowd
    grid = {"model": ["majority_vote"], "classifier": [LogisticRegression(C=1e-7), LogisticRegression(max_iter=500)]}
    search = GridSearchCV(CrowdClassifier(), grid, cv=3).fit(X, Y)
    assert search.best_params_["classifier"].max_iter == 500
    assert search.best_estimator_.truth_.shape == (300, 10)
    assert search.score(unseen, answers) > 0.8
    nested = GridSearchCV(CrowdClassifier(classifier=GaussianNB()), {"classifier__var_smoothing": [1e-2, 1e6]}, cv=2)
    assert nested.fit(X, Y).best_params_ == {"classifier__var_smoothing": 1e-2}


def test_cross_validation_scores_each_fold_against_its_own_noisy_labels(crowd):
    X, Y, *_ = crowd
    folds = KFold(3)
    scores = cross_val_score(CrowdClassifier("majority_vote"), X, Y, cv=3)
    by_hand = [CrowdClassifier("majority_vote").fit(X[a], Y[a]).score(X[b], Y[b]) for a, b in folds.split(X)]
    np.testing.assert_allclose(scores, by_hand)
    item, annotator = np.nonzero(Y >= 0)
    stored = sparse.csr_array((Y[item, annotator], (item, annotator)), shape=Y.shape)
    search = GridSearchCV(CrowdClassifier("majority_vote"), {"seed": [0]}, cv=folds).fit(X, stored)
    np.testing.assert_allclose([search.cv_results_[f"split{fold}_test_score"][0] for fold in range(3)], scores)
    named = NAMES[Y].astype(object)
    named[Y < 0] = None
    np.testing.assert_allclose(cross_val_score(CrowdClassifier("majority_vote"), X, named, cv=folds), scores, atol=0.01)


def test_metadata_routing_does_not_get_in_the_way(crowd, fitted):
    X, Y, *_ = crowd
    with config_context(enable_metadata_routing=True):
        ours = CrowdClassifier().fit(X, Y)
    np.testing.assert_array_equal(ours.predict(X), fitted.predict(X))


def test_hyper_parameters_reach_the_model(crowd):
    X, Y, *_ = crowd
    ours = CrowdClassifier("majority_vote", hyper_parameters={"vote": "hard"}).fit(X, Y)
    np.testing.assert_array_equal(np.unique(ours.truth_), [0, 1])
    with pytest.raises(PyrocrowdError, match="Did you mean 'vote'"):
        CrowdClassifier("majority_vote", hyper_parameters={"vot": "hard"}).fit(X, Y)
