"""Trace regularisation: what only this paper claims, its loss written out by hand, and its checklist.

Tanno, Saeedi, Sankaranarayanan, Alexander, Silberman (2019), Learning From Noisy Labels By Regularized Estimation Of
Annotator Confusion, doi:10.1109/CVPR.2019.01150.
"""

from copy import copy
from itertools import product

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy.special import softmax
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pyrocrowd
from pyrocrowd import EM, MAP, Confused, Crowd, PyrocrowdError, metrics, zoo
from pyrocrowd.check import examine
from pyrocrowd.data import simulate
from pyrocrowd.distributions import ConfusedLowRank
from pyrocrowd.errors import PyrocrowdWarning
from pyrocrowd.infer.run import MOST_CELLS, Task, bind
from pyrocrowd.infer.svi import _loss_function

RANKS = (None, 1, 2)
LIKELIHOODS = ("per_annotation", "joint")
RECOVERS, FAILS = 0.45, 0.25  # skills of four flippers, two of whom share a mistake: the border is at 2 / (2 + 4)
TRAINING = MAP(epochs=20, batch_size=128, learning_rate=0.03, patience=0)


@pytest.fixture
def small():
    """4 items, 3 annotators, 3 classes, with gaps."""
    features = np.random.default_rng(0).normal(size=(4, 2))
    return Crowd.from_matrix([[0, 1, -1], [2, 2, 1], [1, -1, -1], [0, 2, 1]], features=features)


@pytest.fixture
def with_idle(small):
    """The same crowd, and two who gave no label."""
    return small._with(annotator_names=np.arange(5))


def built(crowd, **options):
    """The model as it starts, and its anatomy."""
    torch.manual_seed(0)
    entry = zoo.find("trace")
    bound = bind(entry, crowd, entry.settle(options)).eval()
    return bound, examine(bound, crowd, "trace")


def shaken(crowd, **options):
    """The model with random weights, and its anatomy."""
    bound, anatomy = built(crowd, **options)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for one in bound.parameters():
            one.copy_(torch.randn(one.shape, generator=generator))
    return bound, anatomy


def loss_tensor(bound, anatomy, crowd, batch=None):
    """The whole loss that MAP takes the gradient of."""
    task = Task(bound, crowd, anatomy, None, 0, "trace")
    return _loss_function(MAP(), task)(bound, lambda batch: None, crowd.batch() if batch is None else batch)


def loss_of(bound, anatomy, crowd, batch=None):
    return loss_tensor(bound, anatomy, crowd, batch).item()


def gradients(bound, anatomy, crowd, batch=None):
    """Of all that belongs to the annotators, by name."""
    own = {name: one for name, one in bound.named_parameters() if not name.startswith("net.")}
    found = torch.autograd.grad(loss_tensor(bound, anatomy, crowd, batch), list(own.values()))
    return dict(zip(own, found, strict=True))


def numbers(tensor):
    return tensor.detach().numpy()


def rows(crowd):
    return list(zip(crowd.item.tolist(), crowd.annotator.tolist(), crowd.label.tolist(), strict=True))


def class_chances(bound, crowd):
    """p_i of every item."""
    return softmax(numbers(bound.net(torch.as_tensor(crowd.features))), -1)


def softplus(x):
    return np.logaddexp(0, numbers(x))


def written_out(diagonal, left, right):
    """diag(d_r) + U_r V_r^T of every annotator."""
    return torch.diag_embed(diagonal) + left @ right.transpose(-1, -2)


def matrices_of(bound):
    """pi_r by the formulas of the page, (annotators, classes, classes)."""
    if bound.rank is None:
        positive = softplus(bound.rho)
    else:
        positive = softplus(bound.left) @ softplus(bound.right).swapaxes(-1, -2)
        positive += softplus(bound.diagonal)[..., None] * np.eye(positive.shape[-1])
    return positive / positive.sum(-1, keepdims=True)


def told_by(bound, crowd):
    """pi_r as the model itself has them."""
    if bound.rank is not None:
        return numbers(written_out(*bound.factors()))
    return numbers(poutine.trace(bound).get_trace(crowd.batch()).nodes["confusion"]["value"])


def mean_trace(bound, crowd):
    """Of the annotators who gave labels."""
    return np.mean([np.trace(matrix) for matrix in matrices_of(bound)[np.unique(crowd.annotator)]])


def cross_entropies(bound, crowd):
    """-log sum_c p_i[c] pi_r[c, y_ir], one for every label."""
    p, pi = class_chances(bound, crowd), matrices_of(bound)
    return np.array([-np.log(p[item] @ pi[annotator, :, label]) for item, annotator, label in rows(crowd)])


# -------------------------------------------------------------------- the loss, written out


@pytest.mark.parametrize("lam", [0.0, 0.01, 2.0])
@pytest.mark.parametrize("rank", RANKS)
def test_the_loss_is_the_sum_of_the_cross_entropies_and_the_trace(rank, lam, small):
    bound, anatomy = shaken(small, net="linear", rank=rank, lam=lam)
    by_hand = cross_entropies(bound, small).sum() + lam * small.n_items * mean_trace(bound, small)
    assert loss_of(bound, anatomy, small) == pytest.approx(by_hand, abs=1e-8)


@pytest.mark.parametrize("items", [[0, 2], [1], [3, 1, 0]])
@pytest.mark.parametrize("rank", RANKS)
def test_the_loss_of_a_mini_batch_scales_the_cross_entropies_up_and_leaves_the_trace(rank, items, small):
    bound, anatomy = shaken(small, net="linear", rank=rank, lam=2.0)
    inside = cross_entropies(bound, small)[np.isin(small.item, items)].sum()
    by_hand = small.n_items / len(items) * inside + 2.0 * small.n_items * mean_trace(bound, small)
    assert loss_of(bound, anatomy, small, small.batch(items)) == pytest.approx(by_hand, abs=1e-8)


@pytest.mark.parametrize("rank", RANKS)
def test_the_joint_loss_is_the_sum_over_all_truths_and_the_trace(rank, small):
    bound, anatomy = shaken(small, net="linear", rank=rank, lam=2.0, likelihood="joint")
    p, pi, total = class_chances(bound, small), matrices_of(bound), 0.0
    for truth in product(range(3), repeat=4):
        chance = np.prod([p[item, truth[item]] for item in range(4)])
        for item, annotator, label in rows(small):
            chance *= pi[annotator, truth[item], label]
        total += chance
    by_hand = -np.log(total) + 2.0 * small.n_items * mean_trace(bound, small)
    assert loss_of(bound, anatomy, small) == pytest.approx(by_hand, abs=1e-8)


@pytest.mark.parametrize("rank", RANKS)
def test_those_who_gave_no_label_do_not_count_in_the_mean_trace(rank, with_idle):
    bound, anatomy = shaken(with_idle, net="linear", rank=rank, lam=2.0)
    everyone = np.trace(matrices_of(bound), axis1=1, axis2=2).mean()
    assert abs(everyone - mean_trace(bound, with_idle)) > 1e-3
    by_hand = cross_entropies(bound, with_idle).sum() + 2.0 * with_idle.n_items * mean_trace(bound, with_idle)
    assert loss_of(bound, anatomy, with_idle) == pytest.approx(by_hand, abs=1e-8)


def test_with_the_identity_as_oracle_the_loss_is_the_ordinary_cross_entropy_of_all_labels(small):
    bound, anatomy = shaken(small, net="linear", lam=0.0, oracle=np.stack([np.eye(3)] * 3))
    by_hand = torch.nn.functional.cross_entropy(
        bound.net(torch.as_tensor(small.features))[small.item], torch.as_tensor(small.label), reduction="sum"
    )
    assert loss_of(bound, anatomy, small) == pytest.approx(by_hand.item(), abs=1e-10)


def test_joint_and_per_annotation_are_one_where_every_item_has_one_label(small):
    first = np.unique(small.item, return_index=True)[1]
    single = small.keep(np.isin(np.arange(small.n_annotations), first))
    for crowd, least, most in ((single, 0, 1e-10), (small, 1e-3, np.inf)):
        losses = [loss_of(*shaken(crowd, net="linear", likelihood=likelihood), crowd) for likelihood in LIKELIHOODS]
        assert least <= abs(losses[0] - losses[1]) <= most


# -------------------------------------------------------------------- matrices and their start


def of_classes(classes):
    return Crowd.from_matrix([[0, 1], [1, 0]], features=np.eye(2), classes=list(range(classes)))


@pytest.mark.parametrize(("classes", "diagonal"), [(6, 0.9751), (8, 0.9654), (10, 0.9560)])
def test_the_matrices_begin_near_the_identity_as_in_the_papers_code(classes, diagonal):
    crowd = of_classes(classes)
    start = told_by(built(crowd)[0], crowd)
    assert np.allclose(np.diagonal(start, axis1=1, axis2=2), diagonal, atol=5e-5)
    assert np.allclose(start[:, ~np.eye(classes, dtype=bool)], (1 - start[0, 0, 0]) / (classes - 1))


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("classes", [10, 60])
def test_matrices_of_low_rank_begin_as_full_ones_of_ten_classes_do(classes, rank):
    crowd = of_classes(classes)
    start = told_by(built(crowd, rank=rank)[0], crowd)
    assert np.trace(start, axis1=1, axis2=2).mean() / classes == pytest.approx(0.956, abs=0.005)


@pytest.mark.parametrize("steps", [1, 40])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.filterwarnings("ignore:trace:pyrocrowd.errors.PyrocrowdWarning")  # steps that large lead anywhere
def test_rows_of_the_matrices_sum_to_one_after_any_number_of_steps(rank, steps, small):
    fit = pyrocrowd.fit("trace", small, MAP(steps=steps, learning_rate=0.5), rank=rank)
    model = fit._ready_model()
    matrices = told_by(model, small)
    assert (matrices > 0).all() and np.allclose(matrices.sum(-1), 1, atol=1e-12)
    assert np.allclose(matrices, matrices_of(model), atol=1e-12)
    assert np.allclose(fit.confusion().values, matrices, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_reach_the_matrices_of_everybody_who_gave_labels(rank, likelihood, with_idle):
    for lam in (0.0, 0.01):
        found = gradients(*built(with_idle, rank=rank, lam=lam, likelihood=likelihood), with_idle)
        assert set(found) == ({"rho"} if rank is None else {"diagonal", "left", "right"})
        for gradient in found.values():
            assert torch.isfinite(gradient).all() and (gradient[:3].abs().flatten(1).amax(1) > 1e-6).all()


@pytest.mark.parametrize("rank", RANKS)
def test_training_moves_the_matrices(rank, small):
    begun, _ = built(small, rank=rank)
    fit = pyrocrowd.fit("trace", small, MAP(steps=30, learning_rate=0.1), rank=rank)
    moved = np.abs(matrices_of(fit._ready_model()) - matrices_of(begun)).max((1, 2))
    assert (moved > 0.01).all()


# -------------------------------------------------------------------- labels that are not there


def trace_gradient(bound, crowd, lam):
    """Of lam N mean trace alone, at rho."""
    pi = torch.nn.functional.softplus(bound.rho)
    pi = pi / pi.sum(-1, keepdim=True)
    return torch.autograd.grad(lam * crowd.n_items * pi.diagonal(dim1=-2, dim2=-1).sum(-1).mean(), bound.rho)[0]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_only_the_trace_moves_the_matrix_of_one_who_labelled_nothing_in_the_batch(likelihood, small):
    batch = small.batch([0, 2])  # annotator 2 labelled neither, and the second slot of item 2 is padded
    assert not batch.mask.all() and not (batch.annotator[batch.mask] == 2).any()
    for lam in (0.0, 2.0):
        bound, anatomy = shaken(small, net="linear", lam=lam, likelihood=likelihood)
        found = gradients(bound, anatomy, small, batch)["rho"]
        assert torch.allclose(found[2], trace_gradient(bound, small, lam)[2], atol=1e-12)
        assert bool((found[2] == 0).all()) == (lam == 0) and (found[:2] != 0).any()


@pytest.mark.parametrize("rank", RANKS)
def test_nothing_that_stands_in_a_padded_slot_makes_a_difference(rank, small):
    bound, anatomy = shaken(small, net="linear", rank=rank, lam=0.0)
    batch = small.batch()
    filled = copy(batch)
    filled.annotator, filled.label = (torch.where(batch.mask, one, 2) for one in (batch.annotator, batch.label))
    assert (filled.label != batch.label).any()
    assert loss_of(bound, anatomy, small, filled) == loss_of(bound, anatomy, small, batch)
    plain, other = (gradients(bound, anatomy, small, one) for one in (batch, filled))
    assert all(torch.allclose(plain[name], other[name], atol=1e-14) for name in plain)


# -------------------------------------------------------------------- the weight of the trace


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.filterwarnings("ignore:trace:pyrocrowd.errors.PyrocrowdWarning")  # a large lam spreads the matrices out
def test_the_fitted_trace_falls_as_its_weight_grows(rank):
    crowd = simulate.trace(items=400, skill=0.8, annotators=4, labels_per_item=2).crowd
    traces = []
    for lam in (0.0, 0.03, 0.3, 3.0):
        fit = pyrocrowd.fit("trace", crowd, MAP(steps=300, learning_rate=0.03, patience=0), lam=lam, rank=rank)
        traces.append(mean_trace(fit._ready_model(), crowd))
    assert (np.diff(traces) < -0.01).all() and traces[0] < 4


# -------------------------------------------------------------------- recovery


def flippers(skill, labels_per_item):
    """Four of them, and whether their mean is dominant. Seed 3, for not every lost fit can be told: with some targets
    the matrices of wrongly named classes are dominant again."""
    made = simulate.trace(items=4000, skill=skill, annotators=4, labels_per_item=labels_per_item, seed=3)
    return made, metrics.diagonally_dominant(made.confusion.mean(0))


@pytest.mark.parametrize("labels_per_item", [4, 1])
def test_matrices_are_recovered_where_their_mean_is_column_dominant(labels_per_item):
    made, dominant = flippers(RECOVERS, labels_per_item)
    assert dominant and made.confusion.max() > 0.5  # though each is wrong more often than right
    fit = pyrocrowd.fit("trace", made.crowd, TRAINING)
    assert fit.notes["doubts"] == []
    assert metrics.cm_error(fit.confusion().values, made.confusion) < 0.02
    assert metrics.accuracy(made.test.truth, fit.predict_proba(made.test.features)) > 0.97


@pytest.mark.parametrize("labels_per_item", [4, 1])
def test_where_it_is_not_they_are_lost_and_the_fit_says_so(labels_per_item):
    made, dominant = flippers(FAILS, labels_per_item)
    assert not dominant
    with pytest.warns(PyrocrowdWarning, match="^trace: items of class"):
        fit = pyrocrowd.fit("trace", made.crowd, TRAINING)
    assert metrics.cm_error(fit.confusion().values, made.confusion) > 0.2


@pytest.mark.parametrize("rank", [None, 2])
def test_doubts_are_kept_with_the_fit_and_come_back_from_disk(rank, tmp_path):
    made, _ = flippers(FAILS, 4)
    with pytest.warns(PyrocrowdWarning) as told:
        fit = pyrocrowd.fit("trace", made.crowd, TRAINING, rank=rank)
    assert [str(one.message) for one in told] == fit.notes["doubts"] and len(fit.notes["doubts"]) == 1
    assert fit.notes["doubts"][0].startswith("trace: ") and "\n" not in fit.notes["doubts"][0]
    assert pyrocrowd.load(fit.save(tmp_path / "run")).notes["doubts"] == fit.notes["doubts"]


def test_a_doubt_names_the_classes_and_how_often_each_gets_the_label(small):
    named = small._with(class_names=np.array(["ape", "bee", "cat"], object))
    bound, _ = built(named)
    with torch.no_grad():  # everybody takes apes for bees
        bound.rho[:, 0] = torch.tensor([-5.0, 5.0, -5.0])
    fit = pyrocrowd.fit("trace", named, MAP(steps=1, learning_rate=1e-9))
    fit.draws["confusion"] = matrices_of(bound)[None, None]
    (doubt,) = bound.doubts(fit)
    assert doubt.startswith(
        "trace: items of class bee are labelled bee with a mean chance of 0.99 and items of class ape"
    )


@pytest.mark.parametrize("rank", [None, 2])
def test_those_who_gave_no_label_do_not_take_the_doubts_away(rank):
    made, _ = flippers(FAILS, 4)
    crowd = made.crowd._with(annotator_names=np.arange(20))
    with pytest.warns(PyrocrowdWarning, match="^trace:"):
        pyrocrowd.fit("trace", crowd, TRAINING, rank=rank)


# -------------------------------------------------------------------- known matrices


@pytest.fixture(scope="module")
def made():
    return simulate.trace(items=100, annotators=4, classes=3, labels_per_item=2)


@pytest.mark.parametrize("given", ["array", "list", "npy", "hidden.npz"])
def test_known_matrices_stay_as_they_are_and_only_the_network_learns(given, made, tmp_path):
    np.save(tmp_path / "known.npy", made.confusion)
    oracle = {
        "array": made.confusion,
        "list": made.confusion.tolist(),
        "npy": str(tmp_path / "known.npy"),
        "hidden.npz": made.save(tmp_path / "made") / "hidden.npz",
    }[given]
    begun, _ = built(made.crowd, oracle=oracle)
    fit = pyrocrowd.fit("trace", made.crowd, MAP(steps=10), oracle=oracle)
    assert np.allclose(fit.confusion().values, made.confusion, atol=1e-12)
    assert np.array_equal(fit.weights["module.known"], made.confusion) and "module.rho" not in fit.weights
    assert all(name.startswith("net.") for name, _ in begun.named_parameters())
    assert fit.losses[-1] < fit.losses[0] and fit.notes["doubts"] == []
    again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert np.array_equal(again.predict_proba(made.test.features), fit.predict_proba(made.test.features))


def test_known_matrices_are_the_upper_bound():
    made, _ = flippers(FAILS, 1)
    fit = pyrocrowd.fit("trace", made.crowd, TRAINING, oracle=made.confusion)
    assert metrics.accuracy(made.test.truth, fit.predict_proba(made.test.features)) > 0.9


def test_known_matrices_that_do_not_fit_are_refused_in_one_sentence(made, tmp_path):
    np.savez(tmp_path / "other.npz", matrices=made.confusion)
    (tmp_path / "text.npy").write_text("0.5 0.5")
    sentences = {
        "nowhere.npy": "oracle: .*nowhere.npy does not exist",
        "other.npz": "oracle: .*other.npz cannot be read",
        "text.npy": "oracle: .*text.npy cannot be read",
    }
    cases = [(tmp_path / name, sentence) for name, sentence in sentences.items()]
    shape = r"oracle has shape \(3, 3, 3\) where \(annotators, classes, classes\) = \(4, 3, 3\) belongs"
    for oracle, sentence in [*cases, (made.confusion[:3], shape)]:
        with pytest.raises(PyrocrowdError, match=f"^{sentence}") as refusal:
            pyrocrowd.fit("trace", made.crowd, oracle=oracle)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lam": -0.01}, "lam must be a number of at least 0, not -0.01."),
        ({"rank": 0}, "rank must be a number of at least 1, not 0."),
        ({"rank": "low"}, "rank must be a number of at least 1, not 'low'."),
        ({"likelihood": "both"}, "likelihood must be one of joint, per_annotation, not 'both'."),
        ({"engine": EM()}, "trace has no m_step, which EM needs: fit it with MAP, SVI or NUTS."),
    ],
)
def test_an_impossible_option_is_refused_in_one_sentence(options, sentence, small):
    with pytest.raises(PyrocrowdError) as refusal:
        pyrocrowd.fit("trace", small, **options)
    assert str(refusal.value) == sentence


# -------------------------------------------------------------------- low rank


def random_factors(annotators, classes, rank):
    """d, U and V of row-stochastic matrices."""
    diagonal, left, right = (torch.rand(annotators, classes, size) for size in (1, rank, rank))
    rows = diagonal + left @ right.sum(1).unsqueeze(-1)
    return (diagonal / rows).squeeze(-1), left / rows, right


@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_labels_score_like_those_of_the_full_matrices_enumerated_or_not(rank, small):
    batch, factors = small.batch(), random_factors(3, 3, rank)
    full = written_out(*factors)
    assert torch.allclose(full.sum(-1), torch.ones(3, 3))
    enumerated = torch.arange(3).reshape(3, 1, 1)
    for truth in (enumerated, enumerated.unsqueeze(1), torch.tensor([1, 0, 2, 2]), torch.full((2, 1, 1, 4), 1)):
        ours, theirs = ConfusedLowRank(factors, batch.annotator, truth), Confused(full, batch.annotator, truth)
        assert ours.batch_shape == theirs.batch_shape
        assert torch.allclose(ours.log_prob(batch.label), theirs.log_prob(batch.label), atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_labels_are_drawn_with_the_frequencies_of_the_full_matrix(rank):
    factors = random_factors(2, 4, rank)
    for annotator, truth in product(range(2), range(4)):
        who, true = (torch.full((20_000,), one) for one in (annotator, truth))
        drawn = ConfusedLowRank(factors, who, true).sample()
        shares = torch.bincount(drawn, minlength=4) / len(drawn)
        assert torch.allclose(shares, written_out(*factors)[annotator, truth], atol=0.02)


class Largest(TorchDispatchMode):
    """Watches how many numbers the largest tensor has."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
        self.size = max(self.size, *sizes, 0)
        return made


def test_many_classes_are_fitted_without_a_matrix_for_every_annotator(tmp_path):
    annotators, classes, items, each = 200, 320, 150, 20
    generator = np.random.default_rng(0)
    assert annotators * classes**2 > MOST_CELLS
    crowd = Crowd(
        np.repeat(np.arange(items), each),
        generator.integers(annotators, size=each * items),
        generator.integers(classes, size=each * items),
        item_names=np.arange(items),
        annotator_names=np.arange(annotators),
        class_names=np.arange(classes),
        features=generator.normal(size=(items, 5)),
    )
    with Largest() as watch:
        fit = pyrocrowd.fit("trace", crowd, MAP(steps=3), net="linear", rank=2)
        assert len(fit.annotators()) == annotators and len(fit.labels()) == items
        again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert watch.size < annotators * classes**2 / 5
    assert max(weight.numel() for weight in fit.weights.values()) == annotators * classes * 2
    assert again.labels().equals(fit.labels()) and again.annotators().equals(fit.annotators())
    for one in (fit, again):
        with pytest.raises(PyrocrowdError, match="too many classes .*: use pair_confusion"):
            one.confusion()
    pairs = fit.pair_confusion(items=[7], annotators=[3, 5])
    assert pairs.shape == (1, 2, classes, classes) and np.allclose(pairs.sum("label"), 1)
    diagonal, left, right = (one[[3, 5]] for one in fit._ready_model().factors())
    assert np.allclose(pairs.values[0], numbers(written_out(diagonal, left, right)), atol=1e-9)
