"""Tanno's annotators: their matrices are those of the paper, and their crowds are drawn from them."""

import json

import numpy as np
import pytest

from pyrocrowd import Crowd, PyrocrowdError
from pyrocrowd.cli import app
from pyrocrowd.data.simulate import four_annotators, hammer_spammers, hidden, pairwise_flippers, trace
from pyrocrowd.data.simulate.trace import KINDS
from pyrocrowd.metrics import annotator_confusions, diagonally_dominant, dominance, skill

AIRPLANE, AUTOMOBILE, BIRD, CAT, DEER, DOG, FROG, HORSE, SHIP, TRUCK = range(10)
SMALL = dict(items=200, classes=5)


def largest_sharing(confusion):
    """Annotators who take the same class for the same other, where most do; for flippers of skill below 1."""
    wrong = (confusion > 0) & ~np.eye(confusion.shape[-1], dtype=bool)
    return wrong.sum(0).max()


def same(one: Crowd, two: Crowd) -> bool:
    columns = ("item", "annotator", "label", "item_names", "annotator_names", "class_names", "features", "truth")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in columns)


# -------------------------------------------------------------------- flippers


@pytest.mark.parametrize("p", [0, 0.25, 0.35, 0.8, 1])
def test_a_flipper_is_right_with_their_skill_and_else_says_one_other_class(p):
    confusion = pairwise_flippers(5, 10, p)
    assert confusion.shape == (5, 10, 10) and np.allclose(confusion.sum(-1), 1)
    assert np.allclose(np.diagonal(confusion, axis1=1, axis2=2), p)
    assert ((confusion > 1e-12).sum(-1) == (1 if p in (0, 1) else 2)).all()


@pytest.mark.parametrize("seed", range(10))
def test_of_five_flippers_two_share_a_target_and_no_three_do(seed):
    assert largest_sharing(pairwise_flippers(5, 10, 0.35, seed=seed)) == 2
    assert largest_sharing(trace(items=20, classes=10, seed=seed).confusion) == 2
    assert largest_sharing(trace(items=20, seed=seed).confusion) == 2


@pytest.mark.parametrize(
    "annotators, classes, shared", [(5, 10, 1), (5, 10, 3), (5, 3, 4), (10, 10, 2), (5, 2, 5), (1, 4, 1)]
)
def test_any_other_number_may_share_a_target(annotators, classes, shared):
    assert largest_sharing(pairwise_flippers(annotators, classes, 0.5, shared)) == shared


def test_left_to_chance_one_group_of_flippers_in_three_shares_as_those_of_the_paper_do():
    sharing = [largest_sharing(pairwise_flippers(5, 10, 0.5, shared=0, seed=seed)) for seed in range(1000)]
    shares = np.bincount(sharing, minlength=6) / 1000
    assert shares[:3].sum() == pytest.approx(0.34, abs=0.05) and shares[3] == pytest.approx(0.60, abs=0.05)


def test_drawing_single_classes_again_gives_the_groups_that_drawing_all_again_would():
    """Every (2, 2, 1) of five targets among three is as likely, class by class."""
    kept = np.stack([pairwise_flippers(5, 4, 0.0, seed=seed) for seed in range(1500)])
    of_first = kept[:, 0, 0, 1:].mean(0)  # where the first annotator sends class 0
    together = (kept[:, 0, 0] * kept[:, 1, 0]).sum(-1).mean()  # the first and the second to the same one
    assert np.allclose(of_first, 1 / 3, atol=0.04)
    assert together == pytest.approx(2 / 10, abs=0.03)  # two of the ten pairs of annotators agree


@pytest.mark.parametrize("seed", range(5))
def test_flippers_keep_their_targets_at_every_skill_and_lose_dominance_between_a_quarter_and_three_tenths(seed):
    groups = [pairwise_flippers(5, 10, p, seed=seed) for p in (0.25, 0.3, 0.35, 0.9)]
    assert all(np.array_equal(group > 0, groups[0] > 0) for group in groups)
    assert [bool(diagonally_dominant(group.mean(0))) for group in groups] == [False, True, True, True]


def test_three_flippers_who_share_a_target_need_more_skill():
    low, high = (dominance(pairwise_flippers(5, 10, p, shared=3).mean(0)) for p in (0.37, 0.38))
    assert low < 0 < high  # 3 / (3 + 5) = 0.375


# -------------------------------------------------------------------- hammer-spammers and the four


def test_hammer_spammers_by_label_are_all_alike_and_a_guess_may_be_right():
    confusion = hammer_spammers(3, 4, 0.6)
    assert confusion.shape == (3, 4, 4) and np.allclose(confusion.sum(-1), 1)
    assert np.allclose(confusion, np.where(np.eye(4), 0.7, 0.1))


def test_hammer_spammers_by_annotator_know_everything_or_nothing():
    confusion = hammer_spammers(2000, 3, 0.2, by_annotator=True)
    hammer = (confusion == np.eye(3)).all((1, 2))
    assert np.allclose(confusion[~hammer], 1 / 3) and hammer.mean() == pytest.approx(0.2, abs=0.03)
    better = hammer_spammers(2000, 3, 0.3, by_annotator=True)
    assert (better[hammer] == np.eye(3)).all()
    assert (hammer_spammers(9, 3, 1, by_annotator=True) == np.eye(3)).all()
    assert np.allclose(hammer_spammers(9, 3, 0, by_annotator=True), 1 / 3)


@pytest.mark.parametrize("classes", [2, 4, 6, 10])
def test_the_four_are_right_45_times_in_100(classes):
    confusion = four_annotators(classes)
    assert confusion.shape == (4, classes, classes) and np.allclose(confusion.sum(-1), 1)
    assert np.allclose(skill(confusion), [0.55, 0.6, 0.5, 0.15])
    assert np.allclose(np.diagonal(confusion.mean(0)), 0.45)


def test_the_four_confuse_what_the_paper_says():
    guesses, lookalikes, neighbours, misnamed = four_annotators()
    assert np.allclose(guesses[~np.eye(10, dtype=bool)], 0.05)
    for one, other in ((AIRPLANE, BIRD), (AUTOMOBILE, TRUCK), (CAT, DOG), (DEER, HORSE), (FROG, SHIP)):
        assert np.allclose(lookalikes[[one, other], [other, one]], 0.4)
    assert np.allclose(neighbours[CAT, [BIRD, CAT, DEER]], [0.25, 0.5, 0.25]) and neighbours[TRUCK, AIRPLANE] == 0.25
    assert ((misnamed > 0.8).sum(0) == 1).all() and ((misnamed > 0.8).sum(1) == 1).all()


def test_other_numbers_of_classes_pair_neighbours_and_never_mistake_an_odd_one_out():
    lookalikes = four_annotators(5)[1]
    assert np.allclose(lookalikes[[0, 1, 2, 3], [1, 0, 3, 2]], 0.4) and lookalikes[4, 4] == 1


@pytest.mark.parametrize("classes", [3, 4, 5, 10])
def test_the_four_are_dominant_together_although_the_last_is_not(classes):
    for seed in range(20):
        confusion = four_annotators(classes, seed)
        assert diagonally_dominant(confusion.mean(0)) and not diagonally_dominant(confusion[3])
    assert len({four_annotators(classes, seed)[3].tobytes() for seed in range(20)}) > 1


# -------------------------------------------------------------------- the crowd


def test_the_usual_crowd_has_five_flippers_and_one_label_per_item():
    made = trace()
    assert (made.crowd.n_items, made.valid.n_items, made.test.n_items) == (3200, 400, 400)
    assert (made.crowd.n_annotators, made.crowd.n_classes, made.crowd.n_annotations) == (5, 4, 3200)
    assert (made.crowd.labels_per_item == 1).all() and made.valid.n_annotations == made.test.n_annotations == 0
    assert np.allclose(made.crowd.labels_per_annotator / 3200, 0.2, atol=0.03)
    assert made.crowd.feature_shape == made.test.feature_shape == (20,) and made.hidden == {}
    assert diagonally_dominant(made.confusion.mean(0)) and made.simulator == "trace"


def test_a_clean_classifier_gets_what_the_docstring_says():
    from sklearn.linear_model import LogisticRegression

    made = trace()
    clean = LogisticRegression(max_iter=1000).fit(made.crowd.features, made.crowd.truth)
    assert clean.score(made.test.features, made.test.truth) == pytest.approx(0.995, abs=0.003)


def test_in_the_dense_regime_everybody_labels_everything_after_their_matrix():
    made = trace(classes=10, items=10_000, kind="four", labels_per_item=4)
    assert made.crowd.n_annotations == 32_000 and made.crowd.n_repeated == 0
    assert np.allclose(annotator_confusions(made.crowd), made.confusion, atol=0.08)
    assert (made.crowd.label == made.crowd.truth[made.crowd.item]).mean() == pytest.approx(0.45, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrices_are_those_of_the_functions_with_the_same_seed(kind):
    alone = {
        "flippers": lambda: pairwise_flippers(5, 5, 0.4, seed=3),
        "hammers": lambda: hammer_spammers(5, 5, 0.4),
        "hammers_by_annotator": lambda: hammer_spammers(5, 5, 0.4, by_annotator=True, seed=3),
        "four": lambda: four_annotators(5, seed=3),
    }[kind]()
    assert np.array_equal(trace(**SMALL, kind=kind, skill=0.4, seed=3).confusion, alone)


def test_the_same_seed_gives_the_same_crowd_and_another_seed_another():
    one, again, other = trace(**SMALL, seed=3), trace(**SMALL, seed=3), trace(**SMALL, seed=4)
    for name in ("crowd", "valid", "test"):
        assert same(getattr(one, name), getattr(again, name))
    assert not np.array_equal(one.crowd.features, other.crowd.features)
    assert not np.array_equal(one.confusion, other.confusion)


def test_a_sweep_keeps_items_annotators_and_targets():
    one = trace(**SMALL)
    for change in (dict(skill=0.25), dict(skill=0.9), dict(kind="hammers"), dict(kind="hammers_by_annotator")):
        two = trace(**SMALL, **change)
        assert np.array_equal(one.crowd.features, two.crowd.features)
        assert np.array_equal(one.crowd.annotator, two.crowd.annotator)
        assert "kind" in change or np.array_equal(one.confusion > 0, two.confusion > 0)


def test_annotators_that_nobody_counted_are_those_of_the_paper():
    assert [trace(**SMALL, kind=kind).crowd.n_annotators for kind in KINDS] == [5, 5, 5, 4]
    assert trace(**SMALL, annotators=None).crowd.n_annotators == 5
    assert trace(**SMALL, annotators=7, labels_per_item=7).crowd.n_annotators == 7


def test_other_data_can_be_annotated_and_the_rows_are_told():
    pictures = np.random.default_rng(0).integers(256, size=(60, 3, 4, 4)).astype(np.uint8)
    truth = np.arange(60) % 4  # class 4 has no item, and stays
    made = trace(features=pictures, truth=truth, classes=5)
    row, parts = made.hidden["row"], (made.crowd, made.valid, made.test)
    assert sorted(row) == list(range(60)) and [part.n_items for part in parts] == [48, 6, 6]
    assert np.array_equal(np.concatenate([part.features for part in parts]), pictures[row])
    assert np.array_equal(np.concatenate([part.truth for part in parts]), truth[row])
    assert made.crowd.n_classes == 5


# -------------------------------------------------------------------- impossible input


def test_all_bad_arguments_are_named_at_once():
    with pytest.raises(PyrocrowdError) as refusal:
        trace(
            items=3, kind="fliper", skill=1.2, annotators=2, classes=1, labels_per_item=4, shared=-1, dimension=0,
            separation=-1, seed=-1,
        )  # fmt: skip
    problems = refusal.value.problems
    assert len(problems) == 9 and all(problem.endswith((".", "?")) for problem in problems)
    for sentence in (
        "items must be a whole number of at least 10, not 3.",
        "4 labels per item cannot come from 2 different annotators.",
        "skill must be a number from 0 to 1, not 1.2.",
        "shared must be a whole number of at least 0, not -1.",
        "kind must be one of flippers, hammers, hammers_by_annotator, four, not 'fliper'. Did you mean 'flippers'?",
    ):
        assert sentence in problems


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: trace(kind="four", annotators=5), "kind 'four' has 4 annotators, not 5"),
        (lambda: trace(annotators=-1), "annotators must be a whole number of at least 1, not -1"),
        (lambda: trace(labels_per_item=0), "labels_per_item must be a whole number of at least 1, not 0"),
        (lambda: trace(classes=3), "5 annotators and 3 classes shared must be 3 to 5, or 0 for any, not 2"),
        (lambda: trace(classes=2), "shared must be 5, or 0 for any, not 2"),
        (lambda: trace(shared=6), "shared must be 2 to 5, or 0 for any, not 6"),
        (lambda: trace(features=np.ones((20, 2))), "belong together"),
        (lambda: trace(features=np.ones((20, 2)), truth=np.arange(20)), "truth holds class 19 of classes 0 ... 3"),
        (lambda: pairwise_flippers(5, 10, "much"), "skill must be a number"),
        (lambda: pairwise_flippers(0, 10, 0.5), "annotators must be a whole number"),
        (lambda: pairwise_flippers(9, 30, 0.5, shared=9), "shared=9 is too rare among 9 annotators and 30 classes"),
        (lambda: hammer_spammers(3, 1, 0.5), "classes must be a whole number"),
        (lambda: four_annotators(2.5), "classes must be a whole number"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(PyrocrowdError, match=sentence) as refusal:
        call()
    assert len(refusal.value.problems) == 1


# -------------------------------------------------------------------- the command


def test_the_command_writes_what_the_function_makes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    words = "simulate trace --kind flippers --skill 0.35 --annotators 6 --classes 10 --items 300 --seed 7 --out made"
    with pytest.raises(SystemExit) as end:
        app(words.split())
    assert end.value.code == 0 and "240 labels by 6 annotators on 240 items in 10 classes" in capsys.readouterr().out
    made = trace(items=300, kind="flippers", skill=0.35, annotators=6, classes=10, seed=7)
    assert same(Crowd.read("made"), made.crowd) and same(Crowd.read("made", split="test"), made.test)
    assert np.array_equal(hidden("made")["confusion"], made.confusion)
    record = json.loads((tmp_path / "made" / "simulation.json").read_text())
    assert (record["simulator"], record["seed"]) == ("trace", 7)
    assert same(trace(**record["arguments"], seed=record["seed"]).crowd, made.crowd)


def test_bad_words_end_the_command_with_a_sentence_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        app("simulate trace --kind four --annotators 5 --skill 2 --out made".split())
    assert end.value.code == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err.splitlines() == [
        "error: kind 'four' has 4 annotators, not 5: leave annotators= out.",
        "error: skill must be a number from 0 to 1, not 2.0.",
    ]
