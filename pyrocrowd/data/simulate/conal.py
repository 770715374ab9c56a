"""CoNAL's synthetic crowd: annotators who share some of their mistakes.

Chu, Ma and Wang (2021), Learning from Crowds by Modeling Common Confusions, AAAI.
https://doi.org/10.1609/aaai.v35i7.16730
"""

from __future__ import annotations

import numpy as np

from pyrocrowd.data.simulate.arguments import between, recorded, whole
from pyrocrowd.data.simulate.items import FEWEST_ITEMS, problems_of_given, split_items, unlabelled
from pyrocrowd.data.simulate.matrices import distinct_annotators, draw_labels, flipping, random_pairs, random_targets
from pyrocrowd.data.simulate.simulated import Simulated
from pyrocrowd.errors import PyrocrowdError, did_you_mean

KINDS = ("asymmetric", "symmetric")
EMBEDDING = 20  # length of u_r and v_i; the least of Chu et al.'s grid 20, 40, 60, 80


@recorded
def conal(
    items=10_000,
    annotators=30,
    classes=6,
    labels_per_item=3,
    strength=0.7,
    individual_strength=0.3,
    proportion=0.5,
    kind="asymmetric",
    dimension=20,
    separation=0.85,
    seed=0,
    *,
    features=None,
    truth=None,
) -> Simulated:
    """CoNAL (Chu et al., 2021): Gaussian classes, and annotators with a common and an individual confusion matrix.

    Every label comes either from the one matrix that all annotators share or from the annotator's own:

        z_i ~ Uniform(classes),  x_i ~ N(mean_{z_i}, I),  mean_c ~ N(0, separation^2 I)
        s_ir ~ Bernoulli(omega_ir),  omega_ir = sigmoid(u_r . v_i + bias)
        y_ir ~ Categorical(common[z_i]) where s_ir = 1,  Categorical(individual_r[z_i]) where s_ir = 0

    `v_i` is a random affine map of the item's own features, `u_r` one of features drawn for the annotator, both of
    length one, so that without the bias omega would stay between 0.269 and 0.731 (CoNAL's Eq. 3). The bias, found by
    bisection, makes the mean of omega over the annotations equal `proportion`; at 0 and 1 omega is that number
    everywhere.

    The items are shuffled and split 80 : 10 : 10 into train, valid and test, and only the first are labelled. With the
    same seed and sizes, a change of strengths, proportion or kind leaves items, annotators of an item and, but for
    `kind`, targets of mistakes as they were: a sweep compares like with like.

    Parameters
    ----------
    items : int
        Number of items before the split.
    annotators : int
        Number of annotators.
    classes : int
        Number of classes.
    labels_per_item : int
        Each train item is labelled by that many different annotators, chosen uniformly.
    strength : float
        Probability that the common matrix mistakes an item. It is the off-diagonal mass of each row, the reading of
        "strength" by which the paper's 0.7 x 0.6 = 42% flipped labels come out.
    individual_strength : float
        Probability that an annotator's own matrix mistakes an item. The paper fixes "noise strength" to 0.7, which by
        its own definition leaves these annotators right 3 times in 10, yet it calls them of high quality: 0.3 is
        the reading with a diagonal of 0.7, and `individual_strength=0.7` the literal one.
    proportion : float
        Share of labels that come from the common matrix, from 0 (none) to 1 (all).
    kind : str
        Mistakes of the common matrix: asymmetric (each class is taken for one other) or symmetric (pairs of classes
        are taken for each other). With an odd number of classes, symmetric leaves one class that the common matrix
        never mistakes. The annotators' own matrices are always asymmetric.
    dimension : int
        Number of features of an item.
    separation : float
        Standard deviation of the class means, in units of the spread within a class. With the defaults a logistic
        regression on the true classes of train labels 96.8% of test rightly (mean of 20 seeds, standard deviation
        1.3%; 96.7% with seed 0); the paper gives no figure.
    seed : int
        Seed of everything random.
    features : array, shape (items, ...), optional
        Other data to be annotated, such as features of images; together with `truth`. Then `items`, `dimension` and
        `separation` are left aside.
    truth : array of int, shape (items,), optional
        True classes 0 ... `classes` - 1 of these data.

    Returns
    -------
    Simulated
        Its `hidden` holds `common` (classes, classes), `individual` (annotators, classes, classes), `source` and
        `omega` (annotations,), and for data handed in `row` (items,): which of their rows the items of train, valid
        and test are, one after the other. Its `confusion` is each annotator's effective matrix: with `w_r` the mean
        omega over their labels, `w_r common + (1 - w_r) individual_r`; `w_r = proportion` for one without labels.
    """
    from pyrocrowd.data.crowd import Crowd

    problems = _problems(items, annotators, classes, labels_per_item, kind, dimension, separation, seed)
    problems += between(0, 1, strength=strength, individual_strength=individual_strength, proportion=proportion)
    problems += problems_of_given(features, truth, classes)
    if problems:
        raise PyrocrowdError(problems)
    for_items, for_people, for_common, for_labels = np.random.default_rng(seed).spawn(4)

    (x, z), valid, test, row = split_items(for_items, items, classes, dimension, separation, features, truth)

    target = random_targets(for_common, (), classes) if kind == "asymmetric" else random_pairs(for_common, classes)
    common = flipping(target, strength)
    individual = flipping(random_targets(for_people, (annotators,), classes), individual_strength)

    item = np.repeat(np.arange(len(z)), labels_per_item)
    annotator = distinct_annotators(for_labels, len(z), annotators, labels_per_item)
    omega = _common_share(_affinity(for_people, x, annotator.reshape(len(z), -1), annotators), proportion)
    source = for_labels.random(len(omega)) < omega
    matrices = np.concatenate([individual, common[None]])
    label = draw_labels(for_labels, matrices, np.where(source, annotators, annotator), z[item])

    names = dict(item_names=np.arange(len(z)), annotator_names=np.arange(annotators), class_names=np.arange(classes))
    crowd = Crowd(item, annotator, label, **names, features=x, truth=z)
    hidden = {"common": common, "individual": individual, "source": source.astype(np.int64), "omega": omega}
    return Simulated(
        crowd,
        _effective(common, individual, annotator, omega, proportion),
        hidden | row,
        unlabelled(crowd, *valid),
        unlabelled(crowd, *test),
    )


def _problems(items, annotators, classes, labels_per_item, kind, dimension, separation, seed) -> list[str]:
    problems = whole(FEWEST_ITEMS, items=items) + whole(2, classes=classes) + whole(0, seed=seed)
    counts = whole(1, annotators=annotators, labels_per_item=labels_per_item)
    if not counts and labels_per_item > annotators:
        counts.append(f"{labels_per_item} labels per item cannot come from {annotators} different annotators.")
    problems += counts + whole(1, dimension=dimension) + between(0, 1e6, separation=separation)
    if kind not in KINDS:
        problems.append(f"kind must be one of {', '.join(KINDS)}, not {kind!r}.{did_you_mean(kind, KINDS)}")
    return problems


def _affinity(generator, features, annotator, annotators) -> np.ndarray:
    """`u_r . v_i` of every annotation, from -1 to 1; `annotator` has shape (items, labels per item)."""
    of_items = features.reshape(len(features), -1).astype(np.float32, copy=False)
    of_people = generator.normal(size=(annotators, EMBEDDING))
    u, v = _embedded(generator, of_people), _embedded(generator, of_items)
    return np.einsum("id,ikd->ik", v, u[annotator]).ravel()


def _embedded(generator, features) -> np.ndarray:
    """`W x + b` with random W and b, of length one.

    The images `W x` are centred and brought to the spread of `b`. Then people (or items) differ in direction and yet
    lean to one side together, so that omega varies with the annotator, with the item, and with both.
    """
    weights = generator.normal(size=(features.shape[1], EMBEDDING)).astype(features.dtype)
    images = (features @ weights).astype(float)
    images -= images.mean(0)
    moved = images / max(images.std(), np.finfo(float).tiny) + generator.normal(size=EMBEDDING)
    return moved / np.linalg.norm(moved, axis=-1, keepdims=True)


def _common_share(affinity, proportion) -> np.ndarray:
    """`omega = sigmoid(affinity + bias)` with the bias that makes its mean equal `proportion`."""
    from scipy.optimize import bisect
    from scipy.special import expit, logit

    if proportion in (0, 1):
        return np.full(len(affinity), float(proportion))
    middle = logit(proportion)
    # an affinity is at most 1 in size, so that the bias is within 1 of the middle
    bias = bisect(lambda bias: expit(affinity + bias).mean() - proportion, middle - 2, middle + 2)
    return expit(affinity + bias)


def _effective(common, individual, annotator, omega, proportion) -> np.ndarray:
    """Each annotator's mean matrix over the items they labelled."""
    counts = np.bincount(annotator, minlength=len(individual))
    sums = np.bincount(annotator, omega, minlength=len(individual))
    share = np.where(counts > 0, sums / np.maximum(counts, 1), proportion)[:, None, None]
    return share * common + (1 - share) * individual
