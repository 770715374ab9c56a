"""Tanno's annotators: flippers, hammer-spammers, and the four of CIFAR-10.

Tanno, Saeedi, Sankaranarayanan, Alexander and Silberman (2019), Learning From Noisy Labels By Regularized Estimation Of
Annotator Confusion, CVPR. https://doi.org/10.1109/CVPR.2019.01150
"""

from __future__ import annotations

import numpy as np

from pyrocrowd.data.simulate.arguments import between, recorded, whole
from pyrocrowd.data.simulate.items import FEWEST_ITEMS, problems_of_given, split_items, unlabelled
from pyrocrowd.data.simulate.matrices import flipping, from_confusions, hammers_and_spammers, random_targets
from pyrocrowd.data.simulate.simulated import Simulated
from pyrocrowd.errors import PyrocrowdError, did_you_mean

KINDS = ("flippers", "hammers", "hammers_by_annotator", "four")
GROUP, FOUR = 5, 4  # annotators on MNIST and on CIFAR-10 (Tanno et al., section 4)
# Their mean is the paper's 0.45. Each alone is a choice: the paper shows the four matrices in a figure only.
HAMMER, LOOKALIKE, NEIGHBOUR, ADVERSARY = 0.55, 0.6, 0.5, 0.15
# airplane-bird, automobile-truck, cat-dog, deer-horse, frog-ship (Cao et al. 2019, Max-MIG, ICLR)
CIFAR_PAIRS = np.array([(0, 2), (1, 9), (3, 5), (4, 7), (6, 8)])
MOST_DRAWS = 20_000  # of targets, before `shared` counts as out of reach: some tenths of a second


@recorded
def trace(
    items=4000,
    kind="flippers",
    skill=0.35,
    annotators=0,
    classes=4,
    labels_per_item=1,
    shared=2,
    dimension=20,
    separation=1.2,
    seed=0,
    *,
    features=None,
    truth=None,
) -> Simulated:
    """Trace regularisation (Tanno et al., 2019): Gaussian classes, and a few annotators of low skill.

    Every annotator has one confusion matrix, whatever the item:

        z_i ~ Uniform(classes),  x_i ~ N(mean_{z_i}, I),  mean_c ~ N(0, separation^2 I)
        y_ir ~ Categorical(confusion_r[z_i])

    The matrices are those of `pairwise_flippers`, `hammer_spammers` or `four_annotators` with the same seed. Tanno's
    regularisation can find them where their mean is diagonally dominant (`pyrocrowd.metrics.diagonally_dominant`). That
    of five flippers with `shared=2` is so above a skill of 2/7: at 0.3, and not at 0.25.

    The items are shuffled and split 80 : 10 : 10 into train, valid and test, and only the first are labelled. With the
    same seed and sizes, a change of skill or kind leaves items, annotators of an item and, but for `kind`, targets of
    mistakes as they were: a sweep compares like with like.

    Parameters
    ----------
    items : int
        Number of items before the split.
    kind : str
        Annotators: flippers, hammers, hammers_by_annotator or four. Flippers take each class for one other. Hammers
        are right or guess, label by label; by annotator, each one is always right or always guesses. Four are the
        paper's annotators of CIFAR-10.
    skill : float
        Probability p of a right label or, for both kinds of hammers, of a label that is not guessed. The four have
        skills of their own.
    annotators : int
        Number of annotators, or 0 for the paper's: 4 of kind four, 5 of the others.
    classes : int
        Number of classes.
    labels_per_item : int
        Each train item is labelled by that many different annotators, chosen uniformly. The paper has 1, or as many as
        there are annotators.
    shared : int
        Largest number of flippers who take the same class for the same other, or 0 for whatever comes out.
    dimension : int
        Number of features of an item.
    separation : float
        Standard deviation of the class means, in units of the spread within a class. With the defaults a logistic
        regression on the true classes of train labels 99.7% of test rightly (mean of 20 seeds, standard deviation
        0.3%; 99.5% with seed 0): what goes wrong in a fit is then the fault of the labels.
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
        Its `confusion` holds the matrices. Its `hidden` is empty, but for data handed in there is `row` (items,): which
        of their rows the items of train, valid and test are, one after the other.
    """
    if annotators in (None, 0):
        annotators = FOUR if kind == "four" else GROUP
    problems = _problems(items, kind, annotators, labels_per_item, dimension, separation)
    problems += _problems_of_group(annotators, classes, skill, seed)
    problems += _problems_of_sharing(annotators, classes, shared) if kind == "flippers" else whole(0, shared=shared)
    problems += problems_of_given(features, truth, classes)
    if problems:
        raise PyrocrowdError(problems)
    confusion = _matrices(kind, annotators, classes, skill, shared, seed)
    for_items, for_labels = np.random.default_rng(seed).spawn(2)

    (x, z), valid, test, row = split_items(for_items, items, classes, dimension, separation, features, truth)

    made = from_confusions(z, confusion, labels_per_item, for_labels, features=x)
    made.hidden = row
    made.valid, made.test = unlabelled(made.crowd, *valid), unlabelled(made.crowd, *test)
    return made


def pairwise_flippers(annotators, classes, skill, shared=2, seed=0) -> np.ndarray:
    """Matrices of annotators who take every class for one other: `P[c, c] = p`, `P[c, target_c] = 1 - p`.

    Each target is drawn uniformly among the other classes, and does not depend on the skill p.

    Parameters
    ----------
    annotators, classes : int
    skill : float
        p.
    shared : int
        Largest number n of annotators with the same target for the same class; targets are drawn again until it is
        met. The mean of the R matrices is diagonally dominant where p > n (1 - p) / R, that is p > n / (n + R). Tanno
        et al. see their R = 5 flippers of 10 classes fail between 0.25 and 0.3, as n = 2 does, and chance gives it
        to one group in three. 0 leaves it to chance.
    seed : int

    Returns
    -------
    array, shape (annotators, classes, classes)
    """
    problems = _problems_of_group(annotators, classes, skill, seed) + _problems_of_sharing(annotators, classes, shared)
    if problems:
        raise PyrocrowdError(problems)
    return flipping(_targets(np.random.default_rng(seed), annotators, classes, shared), 1 - skill)


def hammer_spammers(annotators, classes, skill, by_annotator=False, seed=0) -> np.ndarray:
    """Matrices of annotators who are right with probability p and guess otherwise: `P = p I + (1 - p) / classes`.

    Parameters
    ----------
    annotators, classes : int
    skill : float
        p. The diagonal is `p + (1 - p) / classes`, for a guess may be right.
    by_annotator : bool
        The same chance once for each annotator, in place of once for each label: the identity with probability p, else
        uniform rows (Khetan, Lipton and Anandkumar 2018, MBEM, ICLR; their code adds 0.01 to a spammer's diagonal, left
        out here). With the same seed, who is a hammer stays one at a higher skill.
    seed : int

    Returns
    -------
    array, shape (annotators, classes, classes)
    """
    problems = _problems_of_group(annotators, classes, skill, seed)
    if problems:
        raise PyrocrowdError(problems)
    drawn = np.random.default_rng(seed).random(annotators) < skill
    knows = (drawn.astype(float) if by_annotator else np.full(annotators, skill))[:, None, None]
    return knows * np.eye(classes) + (1 - knows) / classes


def four_annotators(classes=10, seed=0) -> np.ndarray:
    """The four annotators of CIFAR-10 in Tanno et al., who are right 45 times in 100 on average.

    1. A hammer-spammer: right with 0.55, else any other class.
    2. One who mixes up look-alikes: 0.6 right, 0.4 the other of the pair. With 10 classes, in the order of CIFAR-10,
       the pairs are airplane-bird, automobile-truck, cat-dog, deer-horse and frog-ship. With any other number they are
       0-1, 2-3 and so on, and an odd class out is never mistaken.
    3. One who slips to a neighbouring class: 0.5 right, 0.25 the class before, 0.25 the one after. The last class and
       the first are neighbours.
    4. One who learnt wrong names: 0.15 right, 0.85 the class at its place in a random permutation that moves them all.

    The paper gives the mean of 45% and shows the matrices only as a figure: these numbers are a reading of it. With
    three classes or more their mean is diagonally dominant, whatever the seed, although the fourth is not.

    Returns
    -------
    array, shape (4, classes, classes)
    """
    problems = whole(2, classes=classes) + whole(0, seed=seed)
    if problems:
        raise PyrocrowdError(problems)
    identity = np.eye(classes)
    guesses = hammers_and_spammers(1, 0, classes, HAMMER)[0]
    lookalikes = flipping(_lookalikes(classes), 1 - LOOKALIKE)
    around = np.roll(identity, 1, axis=1) + np.roll(identity, -1, axis=1)
    neighbours = NEIGHBOUR * identity + (1 - NEIGHBOUR) / 2 * around
    misnamed = flipping(_misnamed(np.random.default_rng(seed), classes), 1 - ADVERSARY)
    return np.stack([guesses, lookalikes, neighbours, misnamed])


def _problems(items, kind, annotators, labels_per_item, dimension, separation) -> list[str]:
    problems = whole(FEWEST_ITEMS, items=items) + whole(1, labels_per_item=labels_per_item, dimension=dimension)
    if not whole(1, annotators=annotators, labels_per_item=labels_per_item) and labels_per_item > annotators:
        problems.append(f"{labels_per_item} labels per item cannot come from {annotators} different annotators.")
    if kind not in KINDS:
        problems.append(f"kind must be one of {', '.join(KINDS)}, not {kind!r}.{did_you_mean(kind, KINDS)}")
    if kind == "four" and annotators != FOUR:
        problems.append(f"kind 'four' has {FOUR} annotators, not {annotators!r}: leave annotators= out.")
    return problems + between(0, 1e6, separation=separation)


def _problems_of_group(annotators, classes, skill, seed) -> list[str]:
    problems = whole(1, annotators=annotators) + whole(2, classes=classes) + between(0, 1, skill=skill)
    return problems + whole(0, seed=seed)


def _problems_of_sharing(annotators, classes, shared) -> list[str]:
    problems = whole(0, shared=shared)
    if problems or shared == 0 or whole(1, annotators=annotators) or whole(2, classes=classes):
        return problems
    least = -(-annotators // (classes - 1))  # as many as must meet where all targets are taken alike
    if least <= shared <= annotators:
        return []
    among = f"{least} to {annotators}" if least < annotators else f"{least}"
    return [f"With {annotators} annotators and {classes} classes shared must be {among}, or 0 for any, not {shared}."]


def _matrices(kind, annotators, classes, skill, shared, seed) -> np.ndarray:
    if kind == "four":
        return four_annotators(classes, seed)
    if kind == "flippers":
        return pairwise_flippers(annotators, classes, skill, shared, seed)
    return hammer_spammers(annotators, classes, skill, kind == "hammers_by_annotator", seed)


def _targets(generator, annotators, classes, shared) -> np.ndarray:
    """Targets (annotators, classes) of which exactly `shared` agree for one class, and no more for any."""
    target = random_targets(generator, (annotators,), classes)
    if not shared:
        return target
    for _ in range(MOST_DRAWS):
        sharing = _sharing(target)
        if sharing.max() == shared:
            return target
        # classes are independent, so that one with too many is drawn again by itself; where none has enough, all are
        again = sharing > shared if sharing.max() > shared else np.full(classes, True)
        target[:, again] = random_targets(generator, (annotators,), classes)[:, again]
    raise PyrocrowdError(
        f"shared={shared} is too rare among {annotators} annotators and {classes} classes: "
        f"it did not come up in {MOST_DRAWS:,} draws, and shared=0 leaves it to chance."
    )


def _sharing(target) -> np.ndarray:
    """For every class the largest number of annotators with the same target: (annotators, classes) -> (classes,)."""
    classes = target.shape[1]
    cells = np.bincount((classes * np.arange(classes) + target).ravel(), minlength=classes**2)
    return cells.reshape(classes, classes).max(1)


def _lookalikes(classes) -> np.ndarray:
    """The other of the pair for every class; an odd class out is its own."""
    pairs = CIFAR_PAIRS if classes == 10 else np.arange(classes // 2 * 2).reshape(-1, 2)
    target = np.arange(classes)
    target[pairs] = pairs[:, ::-1]
    return target


def _misnamed(generator, classes) -> np.ndarray:
    """A permutation that leaves no class at its place; more than one in three does so."""
    while True:
        target = generator.permutation(classes)
        if (target != np.arange(classes)).all():
            return target
