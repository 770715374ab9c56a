"""Every metric against numbers worked by hand, against the specification's oracles, and against its own properties."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.metrics import f1_score

from pyrocrowd import metrics
from pyrocrowd.data.simulate import pairwise_flippers

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"  # beside the repository
HIGHWAY, INSIDE_CITY, TALL_BUILDING, STREET, FOREST, COAST, MOUNTAIN, OPEN_COUNTRY = range(8)
DISCO, METAL, POP, ROCK = 3, 6, 7, 9
UNIFORM, IDENTITY = np.full((8, 8), 1 / 8), np.eye(8)


def table(rows, n_items, n_annotators, n_classes, truth=None):
    item, annotator, label = np.array(rows).reshape(-1, 3).T
    sizes = {"n_items": n_items, "n_annotators": n_annotators, "n_classes": n_classes}
    truth = None if truth is None else np.array(truth)
    return SimpleNamespace(item=item, annotator=annotator, label=label, truth=truth, **sizes)


def stored(name, annotations="annotations.csv", truth="truth.csv"):
    places = [Path(os.environ.get("PYROCROWD_DATA") or SHARED) / name, SHARED / name]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        pytest.skip(f"data set {name} is in neither $PYROCROWD_DATA nor ../shared/data")
    rows, gold = pd.read_csv(folder / annotations), pd.read_csv(folder / truth).sort_values("task")
    item = np.searchsorted(gold.task.to_numpy(), rows.task.to_numpy())
    assert (gold.task.to_numpy()[item] == rows.task.to_numpy()).all()
    workers, annotator = np.unique(rows.worker.to_numpy(), return_inverse=True)
    classes = int(max(rows.label.max(), gold.label.max())) + 1
    rows = np.stack([item, annotator, rows.label.to_numpy()], 1)
    return table(rows, len(gold), len(workers), classes, gold.label.to_numpy())


@pytest.fixture(scope="module")
def labelme():
    return stored("labelme", truth="truth_train.csv")


@pytest.fixture(scope="module")
def music():
    return stored("music_genre", truth="truth_train.csv")


@pytest.fixture
def small():
    """Three annotators, four items, three classes; the last item's truth is unknown, annotator 2 saw only that one."""
    rows = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 1), (2, 0, 0), (2, 1, 1), (3, 0, 2), (3, 2, 2)]
    return table(rows, 4, 3, 3, [0, 1, 2, -1])


def matrices(count, classes, seed, concentration=1.0):
    return np.random.default_rng(seed).dirichlet(np.full(classes, concentration), (count, classes))


def random_crowd(seed, n_items=12, n_annotators=5, n_classes=3, size=40):
    random = np.random.default_rng(seed)
    rows = np.stack([random.integers(top, size=size) for top in (n_items, n_annotators, n_classes)], 1)
    return table(rows, n_items, n_annotators, n_classes, random.integers(-1, n_classes, n_items))


seeds = st.integers(0, 10**6)
few = settings(max_examples=40, deadline=None, derandomize=True, database=None)


# ---------------------------------------------------------------- predictions


def test_accuracy_takes_labels_or_probabilities_and_leaves_unknown_truths_out():
    probs = np.array([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9], [0.2, 0.8]])
    assert metrics.accuracy([0, 1, 1, -1], probs) == pytest.approx(2 / 3)
    assert metrics.accuracy([0, 1, 1, -1], probs.argmax(1)) == pytest.approx(2 / 3)


def test_random_ties_count_by_the_share_of_the_true_class_among_the_tied():
    probs = np.array([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.2, 0.7, 0.1], [0.4, 0.4, 0.2]])
    assert metrics.expected_accuracy_with_random_ties([1, 2, 1, 2], probs) == pytest.approx((1 / 2 + 1 / 3 + 1) / 4)


def test_ties_that_differ_only_by_rounding_are_still_ties():
    probs = np.array([[0.1 + 0.2, 0.3, 0.4 - 0.1, 0.1]])
    assert len(np.unique(probs)) == 3
    assert metrics.expected_accuracy_with_random_ties([1], probs) == pytest.approx(1 / 3)


@few
@given(seeds)
def test_macro_f1_agrees_with_scikit_learn(seed):
    random = np.random.default_rng(seed)
    truth, predicted = random.choice([0, 2, 3], 20), random.choice([0, 2, 5], 20)
    expected = f1_score(truth, predicted, average="macro", zero_division=0)
    assert metrics.macro_f1(np.append(truth, -1), np.append(predicted, 9)) == pytest.approx(expected)


def test_best_last_and_selected_accuracy_are_three_different_epochs():
    summary = metrics.epoch_accuracies([0.5, 0.9, 0.7, 0.6], [0.1, 0.2, 0.8, 0.3])
    assert summary == {"best": 0.9, "last": 0.6, "selected": 0.7}
    assert "selected" not in metrics.epoch_accuracies([0.5])


def test_negative_log_likelihood_is_the_mean_surprise_and_stays_finite_at_zero():
    probs = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    assert metrics.negative_log_likelihood([0, 0, -1], probs) == pytest.approx(1.5 * np.log(2))
    assert metrics.negative_log_likelihood([0, 0, 1], probs) == pytest.approx((3 * np.log(2) + 12 * np.log(10)) / 3)


def test_calibration_error_of_two_bins_by_hand():
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    # bins of width 0.2: confidence 0.9 with accuracy 1/2, confidence 0.6 with accuracy 1
    assert metrics.expected_calibration_error([0, 1, 0, 0], probs, bins=5) == pytest.approx((0.4 + 0.4) / 2)
    # one bin: mean confidence 0.75 and accuracy 0.75 cancel
    assert metrics.expected_calibration_error([0, 1, 0, 0], probs, bins=1) == pytest.approx(0, abs=1e-12)


def test_calibration_bins_are_closed_on_the_right():
    probs = np.array([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25]])  # both in (0, 1/2], so the errors +0.5 and -0.4 pool
    assert metrics.expected_calibration_error([0, 1], probs, bins=2) == pytest.approx(0.05)


def test_area_under_roc_and_average_precision_by_hand():
    truth, score = np.array([0, 0, 0, 1]), np.array([0.1, 0.4, 0.35, 0.38])
    probs = np.stack([1 - score, score], 1)
    assert metrics.area_under_roc(truth, score) == metrics.area_under_roc(truth, probs) == pytest.approx(2 / 3)
    assert metrics.mean_average_precision(truth, probs) == pytest.approx(1 / 2)  # of class 1; class 0 has 11/12


def test_one_against_rest_scores_average_over_classes_and_skip_those_that_never_occur():
    probs = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0], [0.3, 0.7, 0.0]])
    truth = np.array([0, 1, 1, 0])  # class 0: 3 of 4 pairs in order, class 1 likewise, class 2 never
    assert metrics.area_under_roc(truth, probs) == pytest.approx(3 / 4)
    assert np.isnan(metrics.area_under_roc([1, 1], [0.2, 0.3]))


# ---------------------------------------------------------------- votes and confusion matrices of a crowd


def test_votes_of_a_small_crowd_by_hand(small):
    soft = [[0.5, 0.5, 0], [0, 1, 0], [0.5, 0.5, 0], [0, 0, 1]]
    hard = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    np.testing.assert_allclose(metrics.soft_vote(small), soft)
    np.testing.assert_array_equal(metrics.hard_vote(small), hard)


def test_an_item_without_labels_gets_a_uniform_soft_vote():
    np.testing.assert_allclose(metrics.soft_vote(table([(0, 0, 1)], 2, 1, 4))[1], 1 / 4)


def test_annotator_matrices_of_a_small_crowd_by_hand(small):
    uniform, third = metrics.annotator_confusions(small), np.full(3, 1 / 3)
    np.testing.assert_allclose(uniform[0], [[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(uniform[1], [[0, 1, 0], [0, 1, 0], [0, 1, 0]])
    np.testing.assert_allclose(uniform[2], [third, third, third])  # only an item of unknown truth
    np.testing.assert_allclose(metrics.annotator_confusions(small, empty="zero")[2], 0)
    np.testing.assert_allclose(metrics.global_confusion(small), [[0.5, 0.5, 0], [0, 1, 0], [0.5, 0.5, 0]])


def test_soft_truth_gives_soft_counts():
    crowd = table([(0, 0, 0), (1, 0, 1)], 2, 1, 2)
    soft = [[0.75, 0.25], [0.5, 0.5]]
    expected = [[0.75 / 1.25, 0.5 / 1.25], [0.25 / 0.75, 0.5 / 0.75]]
    np.testing.assert_allclose(metrics.annotator_confusions(crowd, soft)[0], expected)
    np.testing.assert_allclose(metrics.global_confusion(crowd, soft), expected)


@few
@given(seeds)
def test_one_hot_truth_equals_hard_truth_and_rows_are_distributions(seed):
    crowd = random_crowd(seed)
    truth = np.abs(crowd.truth)
    hard, soft = (metrics.annotator_confusions(crowd, z) for z in (truth, np.eye(3)[truth]))
    np.testing.assert_array_equal(hard, soft)
    np.testing.assert_allclose(hard.sum(-1), 1)


@few
@given(seeds)
def test_crowd_metrics_agree_with_plain_loops_over_annotations(seed):
    crowd = random_crowd(seed)
    if (crowd.truth[crowd.item] < 0).all():
        return
    rows = [(i, r, y, crowd.truth[i]) for i, r, y in zip(crowd.item, crowd.annotator, crowd.label, strict=True)]
    rows = [row for row in rows if row[3] >= 0]
    items = {i for i, *_ in rows}
    spoiled = sum(not any(y == z for j, _, y, z in rows if j == i) for i in items) / len(items)
    wrong = sum(y != z for *_, y, z in rows) / len(rows)
    assert metrics.noise_rates(crowd) == pytest.approx((spoiled, wrong))
    people = sorted({r for _, r, *_ in rows})
    shares = [np.mean([y == z for _, s, y, z in rows if s == r]) for r in people]
    assert metrics.mean_annotator_accuracy(crowd) == pytest.approx(np.mean(shares))
    heat = np.zeros((3, 3))
    for _, y, z in {(r, y, z) for _, r, y, z in rows if y != z}:
        heat[z, y] += 1 / len(people)
    np.testing.assert_allclose(metrics.common_mistakes(crowd), heat)
    for c, value in enumerate(metrics.class_entropy(crowd)):
        pooled = np.bincount([y for *_, y, z in rows if z == c], minlength=3)
        assert np.isnan(value) if pooled.sum() == 0 else value == pytest.approx(entropy(pooled))


def test_noise_rates_and_annotator_accuracy_of_a_small_crowd_by_hand(small):
    assert metrics.noise_rates(small) == pytest.approx((1 / 3, 3 / 6))
    np.testing.assert_allclose(metrics.annotator_accuracy(small), [2 / 3, 1 / 3, np.nan])
    assert metrics.mean_annotator_accuracy(small) == pytest.approx(1 / 2)


def test_common_mistakes_count_only_annotators_with_an_item_of_known_truth(small):
    np.testing.assert_allclose(metrics.common_mistakes(small), [[0, 1 / 2, 0], [0, 0, 0], [1 / 2, 1 / 2, 0]])


def test_common_mistakes_may_be_counted_against_another_truth_than_that_of_the_crowd(small):
    expected = [[0, 1 / 3, 0], [1 / 3, 0, 0], [0, 0, 0]]  # annotator 0 errs on item 0, annotator 1 on item 2
    np.testing.assert_allclose(metrics.common_mistakes(small, [1, 1, 0, 2]), expected)
    likely = 0.7 * np.eye(3)[[1, 1, 0, 2]] + 0.1
    np.testing.assert_allclose(metrics.common_mistakes(small, likely), expected)


def test_classes_of_high_and_low_weight_by_hand():
    """Mean weights 0.9, 0.5, 0.7 and 0.1 of items 0 to 3; item 4 has no known truth and item 5 no labels."""
    rows = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0), (2, 2, 0), (3, 0, 0), (4, 0, 0)]
    weight = [0.9, 0.2, 0.8, 0.6, 0.7, 0.8, 0.1, 1.0]
    crowd = table(rows, 6, 3, 3, [0, 1, 2, 1, -1, 2])
    np.testing.assert_allclose(metrics.classes_by_weight(crowd, weight), [[1 / 2, 0, 1 / 2], [0, 1, 0]])
    soft = np.array([[0.8, 0.2, 0], [0, 1, 0], [0, 0.5, 0.5], [1, 0, 0], [0, 0, 1], [0, 0, 1]])
    # with a truth of its own item 4 leads, and of five items the upper half holds three: 4, 0 and 2
    expected = [[0.8 / 3, 0.7 / 3, 1.5 / 3], [1 / 2, 1 / 2, 0]]
    np.testing.assert_allclose(metrics.classes_by_weight(crowd, weight, soft), expected)


@few
@given(seeds)
def test_both_halves_by_weight_make_up_the_classes_of_all_items_that_count(seed):
    crowd, random = random_crowd(seed), np.random.default_rng(seed)
    weight, counted = random.random(len(crowd.item)), np.unique(crowd.item[crowd.truth[crowd.item] >= 0])
    halves = metrics.classes_by_weight(crowd, weight)
    np.testing.assert_allclose(halves.sum(1), 1)
    sizes = [-(-len(counted) // 2), len(counted) // 2]
    np.testing.assert_allclose(sizes @ halves, np.bincount(crowd.truth[counted], minlength=3))
    if len(counted) % 2 == 0:
        np.testing.assert_allclose(metrics.classes_by_weight(crowd, -weight), halves[::-1])


def test_annotator_accuracy_error_by_hand(small):
    predicted = np.array([0, 0, 1, 1, 0, 2, 0, 0])  # annotator 0 as observed, annotator 1 always right
    assert metrics.annotator_accuracy_error(small, predicted) == pytest.approx((0 + 2 / 3) / 2)
    assert metrics.annotator_accuracy_error(small, np.eye(3)[predicted]) == pytest.approx(1 / 3)
    assert metrics.annotator_accuracy_error(small, predicted, weights=[1, 3, 7]) == pytest.approx(2 / 3 * 3 / 4)
    assert metrics.annotator_accuracy_error(small, small.label) == 0


def test_krippendorff_alpha_of_the_textbook_example_with_missing_labels():
    """Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section C: four observers, nominal 0.743."""
    observers = ["123321412***", "1233224125*3", "*3332342251*", "12332441251*"]
    rows = [(i, r, int(y) - 1) for r, labels in enumerate(observers) for i, y in enumerate(labels) if y != "*"]
    assert metrics.krippendorff_alpha(table(rows, 12, 4, 5)) == pytest.approx(0.743, abs=5e-4)


def test_krippendorff_alpha_is_one_for_full_agreement_and_below_zero_for_full_disagreement():
    agree = table([(i, r, i % 2) for i in range(4) for r in range(3)], 4, 3, 2)
    oppose = table([(i, r, r) for i in range(4) for r in range(2)], 4, 2, 2)
    assert metrics.krippendorff_alpha(agree) == 1
    assert metrics.krippendorff_alpha(oppose) == pytest.approx(1 - 1 / (4 / 7))


def test_krippendorff_alpha_is_not_a_number_without_a_second_class_or_an_item_of_two_labels():
    assert np.isnan(metrics.krippendorff_alpha(table([(0, 0, 1), (0, 1, 1)], 1, 2, 2)))
    assert np.isnan(metrics.krippendorff_alpha(table([(0, 0, 1), (1, 1, 0)], 2, 2, 2)))


def test_items_with_a_single_label_do_not_move_krippendorff_alpha(small):
    more = table([*zip(small.item, small.annotator, small.label, strict=True), (4, 0, 1)], 5, 3, 3)
    assert metrics.krippendorff_alpha(more) == metrics.krippendorff_alpha(small)


def test_thinning_keeps_at_most_the_redundancy_of_every_item_and_all_labels_of_short_items():
    crowd = random_crowd(3)
    full, kept, scores = np.bincount(crowd.item, minlength=12), [], []

    def watch(thinned):
        kept.append(np.bincount(thinned.item, minlength=12))
        scores.append(metrics.expected_accuracy_with_random_ties(crowd.truth, metrics.soft_vote(thinned)))
        return metrics.soft_vote(thinned)

    curve = metrics.redundancy_curve(crowd, [1, 2, 99], watch, runs=4)
    np.testing.assert_array_equal(kept, np.minimum(full, np.repeat([1, 2, 99], 4)[:, None]))
    scores = np.reshape(scores, (3, 4))
    np.testing.assert_allclose(curve, np.stack([scores.mean(1), scores.std(1, ddof=1) / 2], 1))
    assert curve[0, 1] > 0 and curve[2, 1] == pytest.approx(0, abs=1e-12)
    assert np.isnan(metrics.redundancy_curve(crowd, [1], runs=1)[0, 1])


# ---------------------------------------------------------------- matrices


def test_uniform_matrix_has_identity_similarity_of_the_spec():
    assert metrics.js_divergence(UNIFORM, IDENTITY) == pytest.approx(0.71691, abs=5e-6)
    assert metrics.identity_similarity(UNIFORM) == pytest.approx(0.28309, abs=5e-6)
    middle = (UNIFORM + IDENTITY) / 2  # without the clipping: 0.71692
    exact = (entropy(UNIFORM, middle, base=2, axis=1) + entropy(IDENTITY, middle, base=2, axis=1)).mean() / 2
    assert exact == pytest.approx(0.71692, abs=5e-6)
    assert 0 < exact - metrics.js_divergence(UNIFORM, IDENTITY) < 2e-5


def test_disjoint_rows_are_one_bit_apart():
    assert metrics.js_divergence(IDENTITY, np.roll(IDENTITY, 1, axis=1)) == pytest.approx(1, abs=2e-5)


def test_js_divergence_of_two_binary_rows_by_hand():
    first, second = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    row = 0.5 * (0.5 * np.log2(0.5 / 0.75) + 0.5 * np.log2(0.5 / 0.25)) + 0.5 * np.log2(1 / 0.75)
    assert metrics.js_divergence(first, second) == pytest.approx(row / 2, abs=2e-6)


@few
@given(seeds, st.integers(2, 9), st.floats(0.02, 3))
def test_js_divergence_is_a_symmetric_bounded_batched_distance(seed, classes, concentration):
    first, second = matrices(4, classes, seed, concentration), matrices(4, classes, seed + 1, concentration)
    both = metrics.js_divergence(first, second)
    assert both.shape == (4,)
    assert ((both >= 0) & (both <= 1)).all()
    np.testing.assert_allclose(both, metrics.js_divergence(second, first), atol=1e-12)
    np.testing.assert_allclose(both[2], metrics.js_divergence(first[2], second[2]))
    np.testing.assert_array_equal(metrics.js_divergence(first, first), 0)
    grid = metrics.js_divergence(first[:, None], second)
    np.testing.assert_allclose(np.diagonal(grid), both)


def test_individual_js_is_the_plain_or_the_weighted_mean():
    true, weights = matrices(3, 4, 0), np.array([1, 2, 5])
    values = metrics.js_divergence(np.eye(4), true)
    assert metrics.individual_js(np.eye(4), true) == pytest.approx(values.mean())
    assert metrics.individual_js(np.eye(4), true, weights) == pytest.approx((values * weights).sum() / 8)
    assert metrics.individual_js(true, true) == 0


def test_entropy_of_the_uniform_matrix_is_the_logarithm_of_the_class_count():
    assert metrics.confusion_entropy(UNIFORM) == pytest.approx(np.log(8)) == pytest.approx(2.0794, abs=5e-5)
    np.testing.assert_allclose(metrics.confusion_entropy([IDENTITY, UNIFORM]), [0, np.log(8)])
    assert metrics.confusion_entropy([[1, 0], [0.5, 0.5]]) == pytest.approx(np.log(2) / 2)


def test_matrix_norms_by_hand():
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    half = np.full((2, 2), 0.5)
    assert metrics.norm_f(np.eye(2), swap) == pytest.approx(2 / 2)
    pair, true = np.array([swap, half]), np.array([np.eye(2)] * 2)
    assert metrics.cm_error(pair, true) == pytest.approx((4 + 1) / (2 * 2))
    assert metrics.cm_error(pair, true, squared=False) == pytest.approx((2 + 1) / (2 * 2))


def test_squared_matrix_error_reaches_two_for_disjoint_rows():
    assert metrics.cm_error(IDENTITY[None], np.roll(IDENTITY, 1, axis=1)[None]) == pytest.approx(2)


def test_skill_is_the_mean_diagonal_or_weighs_it_by_prevalence():
    confusion = np.array([[0.9, 0.1], [0.4, 0.6]])
    assert metrics.skill(confusion) == pytest.approx(0.75)
    assert metrics.skill(confusion, [0.2, 0.8]) == pytest.approx(0.66)
    np.testing.assert_allclose(metrics.skill([confusion, np.eye(2)], [0.2, 0.8]), [0.66, 1])


def test_spammer_score_is_one_for_an_expert_zero_for_a_spammer_and_negative_for_malice():
    spammer = np.tile(np.array([0.7, 0.2, 0.1]), (3, 1))
    malicious = (1 - np.eye(3)) / 2
    np.testing.assert_allclose(metrics.spammer_score([np.eye(3), spammer, malicious]), [1, 0, -1 / 2], atol=1e-12)
    confusion = matrices(1, 4, 5)[0] ** 2  # rows need not sum to one
    expected = np.mean([confusion[k, k] - np.delete(confusion[:, k], k).mean() for k in range(4)])
    assert metrics.spammer_score(confusion) == pytest.approx(expected)


def test_bias_score_finds_the_favoured_label():
    favours_two = np.array([[0.4, 0.0, 0.6], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]])
    assert metrics.bias_score(favours_two) == pytest.approx(2.2 / 3 - 0.4 / 3)
    assert metrics.biased_class(favours_two) == 2
    np.testing.assert_allclose(metrics.bias_score([np.eye(3), favours_two]), [0, 0.6])


def test_annotator_distance_is_the_mean_squared_entry_difference():
    confusions = matrices(4, 3, 1)
    expected = ((confusions[:, None] - confusions) ** 2).mean((-2, -1))
    np.testing.assert_allclose(metrics.annotator_distance(confusions), expected, atol=1e-15)


def test_group_inertia_is_the_mean_over_pairs_of_groups():
    groups = matrices(3, 4, 2)
    pairs = [(0, 1), (0, 2), (1, 2)]
    for distance in (metrics.js_divergence, metrics.norm_f):
        expected = np.mean([distance(groups[a], groups[b]) for a, b in pairs])
        assert metrics.group_inertia(groups, distance) == pytest.approx(expected)
    assert metrics.group_inertia(groups) == metrics.group_inertia(groups, metrics.js_divergence)
    assert metrics.group_inertia(groups[:1]) == 0


@few
@given(seeds, st.permutations(range(5)))
def test_matching_undoes_any_permutation_of_the_groups(seed, permutation):
    true = matrices(5, 3, seed)
    shuffled = 0.99 * true[permutation] + 0.01 / 3
    np.testing.assert_array_equal(shuffled[metrics.match_matrices(shuffled, true)], 0.99 * true + 0.01 / 3)


def test_matching_leaves_spare_estimated_groups_out():
    true = matrices(2, 3, 0)
    np.testing.assert_array_equal(metrics.match_matrices(np.stack([np.eye(3), true[1], true[0]]), true), [2, 1])


# ---------------------------------------------------------------- recovery of latent structure


def test_quality_and_rank_errors_by_hand():
    assert metrics.quality_error([0.9, 0.5, 0.7], [0.8, 0.6, 0.7]) == pytest.approx(0.2 / 3)
    assert metrics.rank_error([0.6, 0.9, 0.1], [0.2, 0.8, 0.5]) == pytest.approx((1 + 0 + 1) / 3)  # argsorts give 4/3
    assert metrics.rank_error([0.5, 0.5], [0.1, 0.2]) == pytest.approx(0.5)


def test_meta_purity_is_the_share_of_right_meta_labels():
    assert metrics.meta_purity([0, 1, 2, -1], [2, 0, 3, 2], [2, 1, 1, 0]) == pytest.approx(1 / 3)


def test_source_recovery_by_hand():
    omega, source = np.array([0.9, 0.6, 0.55, 0.1]), np.array([1, 0, 1, 0])
    scores = metrics.source_recovery(omega, source, weight=1 - omega)
    assert scores == pytest.approx({"accuracy": 0.75, "auc": 0.75, "correlation": -1})
    assert np.isnan(metrics.source_recovery(omega, np.ones(4))["auc"])
    assert np.isnan(metrics.source_recovery(omega, source, np.full(4, 0.3))["correlation"])


def test_group_recovery_ignores_the_names_of_the_groups():
    groups = np.array([0, 0, 1, 1, 2, 2])
    assert metrics.group_recovery(np.eye(3)[[2, 2, 0, 0, 1, 1]], groups) == 1
    assert metrics.group_recovery(np.eye(3)[[0, 1, 0, 1, 0, 1]], groups) < 0.01


# ---------------------------------------------------------------- Theorem 1 of CoNAL


def bound_problem(seed, n_items=6, n_annotators=4, n_classes=3, size=14):
    random = np.random.default_rng(seed)
    crowd = random_crowd(seed, n_items, n_annotators, n_classes, size)
    prior = random.dirichlet(np.ones(n_classes), n_items)
    shared, own = random.dirichlet(np.ones(n_classes), n_classes), matrices(n_annotators, n_classes, seed + 1)
    return crowd, prior, 0.9 * shared + 0.1 / n_classes, 0.9 * own + 0.1 / n_classes, random.random(size)


def uncertainty_of_effective_matrices(crowd, prior, common, individual, weight):
    """R_i: one annotator per annotation, whose own matrix is the mixture."""
    effective = weight[:, None, None] * common + (1 - weight[:, None, None]) * individual[crowd.annotator]
    alone = SimpleNamespace(item=crowd.item, annotator=np.arange(len(crowd.item)), n_items=crowd.n_items)
    return metrics.remaining_uncertainty(alone, prior, common, effective, 0.0)


@few
@given(seeds)
def test_remaining_uncertainty_agrees_with_the_formula_written_as_loops(seed):
    crowd, prior, common, individual, weight = bound_problem(seed)
    expected = entropy(prior, axis=1)
    for i, r, omega in zip(crowd.item, crowd.annotator, weight, strict=True):
        for c in range(3):
            for d in range(3):
                gain = omega * entropy(common[c], common[d]) + (1 - omega) * entropy(individual[r, c], individual[r, d])
                expected[i] -= prior[i, c] * prior[i, d] * gain
    np.testing.assert_allclose(metrics.remaining_uncertainty(crowd, prior, common, individual, weight), expected)


@few
@given(seeds)
def test_uncertainty_of_effective_matrices_is_that_of_one_annotator_per_annotation(seed):
    problem = bound_problem(seed)
    expected = uncertainty_of_effective_matrices(*problem)
    np.testing.assert_allclose(metrics.remaining_uncertainty(*problem, effective=True), expected, atol=1e-12)
    everyone = (*problem[:4], 0.3)
    expected = uncertainty_of_effective_matrices(*problem[:4], np.full(len(problem[4]), 0.3))
    np.testing.assert_allclose(metrics.remaining_uncertainty(*everyone, effective=True), expected, atol=1e-12)


@few
@given(seeds, st.floats(0, 1))
def test_uncertainty_of_effective_matrices_is_never_below_the_decomposed_one(seed, omega):
    """F_i <= R_i, since KL is convex; equal where omega is 0 or 1, or where pi_g = pi_r."""
    crowd, prior, common, individual, weight = bound_problem(seed)

    def both(*matrices_and_weight):
        problem = (crowd, prior, common, *matrices_and_weight)
        return metrics.remaining_uncertainty(*problem), metrics.remaining_uncertainty(*problem, effective=True)

    for some in (weight, omega):
        decomposed, effective = both(individual, some)
        assert (decomposed <= effective + 1e-12).all()
    same = np.broadcast_to(common, individual.shape)
    for own, some in ((individual, np.round(weight)), (individual, round(omega)), (same, weight)):
        np.testing.assert_allclose(*both(own, some), atol=1e-12)


@pytest.mark.parametrize("entries", [1, 9 * 5])
def test_the_size_of_the_blocks_does_not_change_the_uncertainty(monkeypatch, entries):
    problem = bound_problem(0)
    whole = metrics.remaining_uncertainty(*problem, effective=True)
    monkeypatch.setattr("pyrocrowd.metrics.bound.ENTRIES_AT_ONCE", entries)  # one annotation, then five at a time
    np.testing.assert_allclose(metrics.remaining_uncertainty(*problem, effective=True), whole)


@few
@given(seeds)
def test_decomposed_bound_is_never_above_that_of_the_effective_matrices(seed):
    problem = bound_problem(seed)
    crowd, prior, common, individual, weight = problem
    decomposed = metrics.remaining_uncertainty(*problem)
    assert (decomposed <= uncertainty_of_effective_matrices(*problem) + 1e-12).all()
    hard = (crowd, prior, common, individual, np.round(weight))
    same = (crowd, prior, common, np.broadcast_to(common, individual.shape), weight)
    for equal in (hard, same):
        expected = uncertainty_of_effective_matrices(*equal)
        np.testing.assert_allclose(metrics.remaining_uncertainty(*equal), expected, atol=1e-12)


def test_uninformative_matrices_give_the_bound_of_the_spec():
    crowd, size = random_crowd(0), 12
    uniform = np.full((3, 3), 1 / 3)
    problem = (crowd, uniform[[0] * size], uniform, uniform[None].repeat(5, 0), 0.4)
    np.testing.assert_allclose(metrics.remaining_uncertainty(*problem), np.log(3))
    bound = (size * np.log(3) - np.log(2)) / (size**2 * np.log(3))
    assert metrics.minimax_bound(*problem) == pytest.approx(bound)
    assert metrics.minimax_bound(*problem, per_item=True) == pytest.approx(1 - np.log(2) / np.log(3))


@few
@given(seeds)
def test_bound_is_clipped_at_zero_lies_under_its_envelope_and_follows_its_formula(seed):
    problem = bound_problem(seed)
    unknown, size = metrics.remaining_uncertainty(*problem), 6
    bound = metrics.minimax_bound(*problem)
    assert bound == pytest.approx(max(0, (unknown.sum() - np.log(2)) / (size**2 * np.log(3))))
    assert bound <= max(0, unknown.max() / (size * np.log(3)) - np.log(2) / (size**2 * np.log(3))) + 1e-12
    expected = np.mean([max(0, (value - np.log(2)) / np.log(3)) for value in unknown])
    assert metrics.minimax_bound(*problem, per_item=True) == pytest.approx(expected)


@few
@given(seeds)
def test_bound_of_the_effective_matrices_follows_its_formula_and_is_never_the_smaller_one(seed):
    problem = bound_problem(seed)
    unknown, size = metrics.remaining_uncertainty(*problem, effective=True), 6
    bound = metrics.minimax_bound(*problem, effective=True)
    assert bound == pytest.approx(max(0, (unknown.sum() - np.log(2)) / (size**2 * np.log(3))))
    for per_item in (False, True):
        sharper = metrics.minimax_bound(*problem, per_item=per_item, effective=True)
        assert metrics.minimax_bound(*problem, per_item=per_item) <= sharper + 1e-12


@few
@given(seeds)
def test_envelope_is_an_upper_bound_of_the_minimax_bound(seed):
    problem = bound_problem(seed)
    for effective in (False, True):
        unknown = metrics.remaining_uncertainty(*problem, effective=effective)
        envelope = metrics.minimax_envelope(unknown.max(), 6, 3)
        assert (unknown.sum() - np.log(2)) / (6**2 * np.log(3)) <= envelope + 1e-12  # not clipped
        assert metrics.minimax_bound(*problem, effective=effective) <= max(0, envelope) + 1e-12
    alike = metrics.minimax_envelope(np.log(3), 12, 3)  # where all F_i are the largest one, it is the bound
    assert alike == pytest.approx((12 * np.log(3) - np.log(2)) / (12**2 * np.log(3)))


@given(st.floats(1e-3, 3), st.integers(2, 100))
@few
def test_envelope_falls_in_the_number_of_items_from_the_corollary_on(largest, classes):
    turn = 2 * np.log(2) / largest
    items = np.ceil(turn) + np.arange(20)
    assert (np.diff(metrics.minimax_envelope(largest, items, classes)) < 0).all()
    if turn >= 2:  # and it rises up to there
        assert (np.diff(metrics.minimax_envelope(largest, np.linspace(1, turn, 9), classes)) > 0).all()


# ---------------------------------------------------------------- dominance of Tanno et al.


def test_dominance_is_the_smallest_margin_of_a_diagonal_entry_in_its_column():
    confusion = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.0, 0.25, 0.75]])
    assert metrics.dominance(confusion) == pytest.approx(0.25)  # of the second column, 0.5 - 0.25
    batch = np.stack([confusion, np.eye(3), np.full((3, 3), 1 / 3), np.roll(np.eye(3), 1, 0)])
    np.testing.assert_allclose(metrics.dominance(batch), [0.25, 1, 0, -1])
    assert metrics.diagonally_dominant(batch).tolist() == [True, True, False, False]
    assert metrics.diagonally_dominant(batch, margin=0.3).tolist() == [False, True, False, False]


def test_dominance_is_a_condition_on_columns_and_not_on_rows():
    by_columns = np.array([[0.95, 0.05], [0.6, 0.4]])
    by_rows = np.array([[0.4, 0.3, 0.3], [0.45, 0.55, 0], [0, 0, 1]])
    assert metrics.diagonally_dominant(by_columns) and by_columns.argmax(1).tolist() == [0, 0]
    assert not metrics.diagonally_dominant(by_rows) and by_rows.argmax(1).tolist() == [0, 1, 2]


@few
@given(seeds, st.integers(2, 6), st.floats(0.3, 1), st.floats(0.3, 1))
def test_no_dominant_matrix_that_explains_the_labels_has_a_smaller_trace_than_the_true_one(seed, classes, own, right):
    """Lemma 1 of Tanno et al.: where pi = P pihat, and pi and pihat are dominant, trace(pi) <= trace(pihat)."""
    drawn = matrices(2, classes, seed)
    estimated = own * np.eye(classes) + (1 - own) * drawn[0]
    classifier = right * np.eye(classes) + (1 - right) * drawn[1]
    true = classifier @ estimated
    assume(metrics.diagonally_dominant(true) and metrics.diagonally_dominant(estimated))
    assert np.trace(true) <= np.trace(estimated) + 1e-12
    assert (np.diagonal(true) <= np.diagonal(estimated) + 1e-12).all()


@few
@given(seeds, st.floats(0, 1))
def test_five_flippers_of_whom_two_share_a_target_are_dominant_above_two_sevenths(seed, skill):
    """n / (n + R) with n = 2 and R = 5, or 0.2857."""
    assume(abs(skill - 2 / 7) > 1e-9)
    mean = pairwise_flippers(5, 10, skill, seed=seed).mean(0)
    assert metrics.diagonally_dominant(mean) == (skill > 2 / 7)
    assert metrics.dominance(mean) == pytest.approx(skill - 2 * (1 - skill) / 5)


# ---------------------------------------------------------------- impossible input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.accuracy([0, 1], [0]), "one row per item"),
        (lambda: metrics.accuracy([-1, -1], [0, 1]), "nothing to score"),
        (lambda: metrics.accuracy([0, 2], np.eye(2)), "truth holds class 2"),
        (lambda: metrics.accuracy([0, 1], [[0.5, np.nan], [1, 0]]), "1 predictions are not finite"),
        (lambda: metrics.negative_log_likelihood([0, 1], [0, 1]), "one row per item"),
        (lambda: metrics.expected_calibration_error([0, 1], np.eye(2), bins=0), "bins=0"),
        (lambda: metrics.epoch_accuracies([0.1, 0.2], [0.3]), "give equally many"),
        (lambda: metrics.js_divergence(np.eye(2), np.eye(3)), "one size C"),
        (lambda: metrics.js_divergence(np.ones(3), np.ones(3)), "one size C"),
        (lambda: metrics.skill(5 * np.eye(3)), "not counts"),
        (lambda: metrics.skill(np.full((2, 2), np.nan)), "outside"),
        (lambda: metrics.dominance(np.ones(3)), "one size C"),
        (lambda: metrics.diagonally_dominant(5 * np.eye(3)), "not counts"),
        (lambda: metrics.match_matrices(np.eye(3)[None], matrices(2, 3, 0)), "cannot cover 2"),
        (lambda: metrics.noise_rates(table([(0, 0, 0)], 1, 1, 2)), "give the crowd a truth"),
        (lambda: metrics.noise_rates(table([(0, 0, 0)], 2, 1, 2, [-1, 1])), "give the crowd a truth"),
        (lambda: metrics.global_confusion(table([(0, 0, 0)], 1, 1, 2)), "carries no truth"),
        (lambda: metrics.global_confusion(table([(0, 0, 0)], 1, 1, 2), [0, 1]), "truth has shape"),
        (lambda: metrics.global_confusion(table([(0, 0, 0)], 1, 1, 2), [2]), "between -1 and 1"),
        (lambda: metrics.global_confusion(table([(0, 0, 0)], 1, 1, 2), [0], empty="one"), "empty='one'"),
        (lambda: metrics.annotator_accuracy_error(table([(0, 0, 0)], 1, 1, 2, [0]), [0, 1]), "one per annotation"),
        (lambda: metrics.common_mistakes(table([(0, 0, 0)], 1, 1, 2, [0]), [0, 1]), "truth has shape"),
        (lambda: metrics.classes_by_weight(table([(0, 0, 0)], 1, 1, 2, [0]), [0.1, 0.2]), "each of 1 labels"),
        (lambda: metrics.classes_by_weight(table([(0, 0, 0)], 1, 1, 2, [0]), [np.nan]), "finite number"),
        (lambda: metrics.classes_by_weight(table([(0, 0, 0)], 1, 1, 2, [0]), [0.1]), "need at least 2"),
        (lambda: metrics.minimax_envelope(0.1, 0, 2), "at least 1 item"),
        (lambda: metrics.minimax_envelope(0.1, 5, 1), "2 classes"),
        (lambda: metrics.minimax_bound(table([(0, 0, 0)], 1, 1, 2), [[1, 0]], np.eye(2), np.eye(2)[None], 0), "smooth"),
    ],
)
def test_impossible_input_is_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_bound_refuses_a_weight_that_is_no_probability_and_a_prior_of_the_wrong_shape():
    crowd, prior, common, individual, weight = bound_problem(0)
    with pytest.raises(ValueError, match="weight must lie"):
        metrics.minimax_bound(crowd, prior, common, individual, weight + 1)
    with pytest.raises(ValueError, match="prior has shape"):
        metrics.minimax_bound(crowd, prior[0], common, individual, weight)


# ---------------------------------------------------------------- oracles on the published data


def test_labelme_is_the_file_of_the_spec(labelme):
    assert (labelme.n_items, labelme.n_annotators, labelme.n_classes, len(labelme.item)) == (1000, 59, 8, 2547)
    np.testing.assert_array_equal(np.bincount(labelme.truth), [89, 116, 131, 110, 138, 134, 128, 154])
    assert len(labelme.item) / 59 == pytest.approx(43.17, abs=5e-3)


def test_music_is_the_file_of_the_spec(music):
    assert (music.n_items, music.n_annotators, music.n_classes, len(music.item)) == (700, 44, 10, 2945)
    assert len(music.item) / 700 == pytest.approx(4.207, abs=5e-4)
    assert len(music.item) / 44 == pytest.approx(66.93, abs=5e-3)


@pytest.mark.parametrize(
    ("name", "vote", "global_js", "individual_js"),
    [
        ("labelme", metrics.soft_vote, 0.02422, 0.21629),
        ("labelme", metrics.hard_vote, 0.03469, 0.22516),
        ("music", metrics.soft_vote, 0.02004, 0.27261),
        ("music", metrics.hard_vote, 0.02282, 0.26308),
    ],
)
def test_majority_vote_matrices_have_the_divergences_of_the_spec(request, name, vote, global_js, individual_js):
    crowd = request.getfixturevalue(name)
    estimated = metrics.global_confusion(crowd, vote(crowd))
    assert metrics.global_js(estimated, metrics.global_confusion(crowd)) == pytest.approx(global_js, abs=5.1e-6)
    true = metrics.annotator_confusions(crowd)
    assert metrics.individual_js(estimated, true) == pytest.approx(individual_js, abs=5.1e-6)


@pytest.mark.parametrize(("vote", "norm"), [(metrics.soft_vote, 0.05656), (metrics.hard_vote, 0.07361)])
def test_majority_vote_matrices_of_labelme_have_the_norms_of_the_spec(labelme, vote, norm):
    estimated = metrics.global_confusion(labelme, vote(labelme))
    assert metrics.norm_f(estimated, metrics.global_confusion(labelme)) == pytest.approx(norm, abs=5.1e-6)


@pytest.mark.parametrize(
    ("name", "spoiled", "wrong", "mean_accuracy", "overall"),
    [("labelme", 0.1110, 0.2595, 0.6916, 0.7405), ("music", 0.1271, 0.4397, 0.7328, 0.5603)],
)
def test_noise_rates_and_annotator_accuracies_of_the_spec(request, name, spoiled, wrong, mean_accuracy, overall):
    crowd = request.getfixturevalue(name)
    assert metrics.noise_rates(crowd) == pytest.approx((spoiled, wrong), abs=5.1e-5)
    assert metrics.mean_annotator_accuracy(crowd) == pytest.approx(mean_accuracy, abs=5.1e-5)
    assert 1 - metrics.noise_rates(crowd)[1] == pytest.approx(overall, abs=5.1e-5)


@pytest.mark.parametrize(
    ("name", "lowest", "expected", "tied"), [("labelme", 0.769, 0.766, 0.129), ("music", 0.711, 0.704, 0.269)]
)
def test_majority_vote_accuracies_and_ties_of_the_spec(request, name, lowest, expected, tied):
    crowd = request.getfixturevalue(name)
    soft = metrics.soft_vote(crowd)
    assert metrics.accuracy(crowd.truth, metrics.hard_vote(crowd)) == pytest.approx(lowest, abs=5.1e-4)
    assert metrics.expected_accuracy_with_random_ties(crowd.truth, soft) == pytest.approx(expected, abs=5.1e-4)
    ties = (soft == soft.max(1, keepdims=True)).sum(1) > 1
    assert ties.mean() == pytest.approx(tied, abs=5.1e-4)


def test_common_mistakes_of_labelme_and_music_are_those_of_the_paper(labelme, music):
    scenes, songs = metrics.common_mistakes(labelme), metrics.common_mistakes(music)
    assert scenes[STREET, INSIDE_CITY] == pytest.approx(36 / 59)
    assert scenes[OPEN_COUNTRY, FOREST] == pytest.approx(26 / 59)
    assert songs[METAL, ROCK] == pytest.approx(28 / 44)
    assert songs[DISCO, POP] == pytest.approx(17 / 44)
    assert not np.diagonal(scenes).any()


def test_class_entropies_of_labelme_are_those_of_the_paper(labelme):
    found = metrics.class_entropy(labelme)[[FOREST, MOUNTAIN, OPEN_COUNTRY, INSIDE_CITY]]
    np.testing.assert_allclose(found, [0.660, 0.193, 1.287, 1.116], atol=5.1e-4)


def test_near_random_annotators_of_music_are_those_of_the_paper(music):
    suspects = [37, 35, 11]
    np.testing.assert_allclose(metrics.annotator_accuracy(music)[suspects], [0.182, 0.108, 0.068], atol=5.1e-4)
    np.testing.assert_array_equal(np.bincount(music.annotator)[suspects], [368, 296, 338])


def test_noise_rates_of_cifar10n_are_those_of_the_spec_on_all_items_and_on_the_training_split():
    crowd = stored("cifar10n")
    assert metrics.noise_rates(crowd) == pytest.approx((0.0213, 0.1767), abs=5.1e-5)
    rank = pd.Series(crowd.truth).groupby(crowd.truth).cumcount().to_numpy()
    crowd.truth = np.where(rank < 4500, crowd.truth, -1)  # the first 90% of each class
    assert metrics.noise_rates(crowd) == pytest.approx((0.0213, 0.1771), abs=5.1e-5)


@pytest.mark.parametrize(
    ("name", "suffix", "redundancies", "expected", "tolerance"),
    [
        ("bluebirds", "", [2, 5, 10, 20, 39], [0.637, 0.720, 0.743, 0.763, 0.759], 0.01),
        ("wordsim", "_binary", [2, 5, 10], [0.814, 0.862, 0.883], 0.015),
        ("rte", "", [2, 5, 10], [0.728, 0.846, 0.897], 0.004),
    ],
)
def test_majority_vote_against_redundancy_follows_the_spec(name, suffix, redundancies, expected, tolerance):
    crowd = stored(name, f"annotations{suffix}.csv", f"truth{suffix}.csv")
    curve = metrics.redundancy_curve(crowd, redundancies, runs=50)
    np.testing.assert_allclose(curve[:, 0], expected, atol=tolerance)
    np.testing.assert_allclose(curve[-1], [expected[-1], 0], atol=6e-4)
