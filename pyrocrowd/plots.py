"""The picture room: matrices, crowds and fits enter, matplotlib axes leave; to show or save them is the caller's.

Every function draws into the axes that it is given, or into a new figure. Heat maps have a row for every true class and
a column for every label.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from pyrocrowd import metrics
from pyrocrowd.errors import PyrocrowdError

COLOURS = plt.get_cmap("magma_r")  # perceptually uniform, and zero is pale
STRONG, FAINT = COLOURS(0.7), COLOURS(0.2)
NUMBERS_UP_TO = 10  # classes whose cells have room for a number
LEVEL_UP_TO = 3  # letters of a class name that fits below its column without a slant
STEP = {"em": "iteration", "nuts": "draw"}
SMOOTH_FROM = 100  # steps of a run whose loss gets a running mean


def confusion_grid(matrices, names=None, titles=None, ax=None, columns=3) -> np.ndarray:
    """Confusion matrices side by side, all of them on the colour scale from 0 to 1.

    Parameters
    ----------
    matrices : array, shape (matrices, classes, classes) or (classes, classes)
        Rows = true class.
    names : sequence, optional
        Class names; by default their numbers.
    titles : sequence, optional
        One for each matrix.
    ax : Axes, or array of as many as there are matrices, optional
    columns : int
        Most matrices in one row of a new figure.

    Returns
    -------
    array of Axes, shape (matrices,)
    """
    matrices = np.asarray(matrices, float)
    matrices = matrices[None] if matrices.ndim == 2 else matrices
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2]:
        raise PyrocrowdError(f"matrices has shape {matrices.shape}: give (matrices, classes, classes).")
    count, classes = matrices.shape[:2]
    names, titles = range(classes) if names is None else names, [""] * count if titles is None else titles
    axes = _new_grid(count, classes, columns) if ax is None else np.atleast_1d(ax).ravel()
    for what, size, due in (("axes", len(axes), count), ("titles", len(titles), count), ("names", len(names), classes)):
        if size != due:
            raise PyrocrowdError(f"There are {size} {what} where there should be {due}.")
    for place, axis in enumerate(axes):
        image = _heat_map(axis, matrices[place], names)
        axis.set_title(titles[place])
        if ax is None:  # names once for a row of matrices and once for a column
            _label_sides(axis, left=place % columns == 0, bottom=place + columns >= count)
    if classes > NUMBERS_UP_TO:
        axes[0].figure.colorbar(image, ax=axes, label="probability", shrink=0.8)
    return axes


def common_mistakes(crowd, truth=None, ax=None) -> Axes:
    """Which mistakes annotators share: the share of them who made each one at least once. Figure 1 of CoNAL.

    Parameters
    ----------
    truth : array, shape (items,) or (items, classes), optional
        Labels or probabilities, such as `fit.truth`, in place of the crowd's own truth.
    """
    shares = metrics.common_mistakes(crowd, truth)
    ax = _new_grid(1, crowd.n_classes)[0] if ax is None else ax
    image = _heat_map(ax, shares, crowd.class_names, largest=shares.max() or 1.0)
    ax.set_title("share of annotators\nwho made the mistake")
    if crowd.n_classes > NUMBERS_UP_TO:
        ax.figure.colorbar(image, ax=ax, shrink=0.8)
    return ax


def classes_by_weight(crowd, weight, truth=None, ax=None) -> Axes:
    """True classes of the half of the items with the higher mean weight, and of the other half. Figure 10 of CoNAL.

    Parameters
    ----------
    weight : array, shape (annotations,)
        Such as `fit.noted["omega"]`, the chance that a label follows the common matrix.
    truth : array, shape (items,) or (items, classes), optional
        Labels or probabilities, such as `fit.truth`, in place of the crowd's own truth.
    """
    shares = metrics.classes_by_weight(crowd, weight, truth)
    place = np.arange(crowd.n_classes)
    ax = plt.subplots(figsize=(6, 1 + 0.4 * crowd.n_classes), layout="constrained")[1] if ax is None else ax
    ax.barh(place - 0.2, shares[0], 0.38, color=STRONG, label="half of high weight")
    ax.barh(place + 0.2, shares[1], 0.38, color=FAINT, label="half of low weight")
    ax.set_yticks(place, crowd.class_names)
    ax.margins(y=0.01)
    ax.invert_yaxis()  # the first class on top, as in a matrix
    ax.set(xlabel="share of the items", ylabel="true class")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))  # above, where no bar can be
    return ax


def loss_curve(fit, ax=None) -> Axes:
    """The loss of every step; where steps are many, and noisy, with its running mean over a twentieth of them."""
    losses = np.asarray(fit.losses, float)
    ax = plt.subplots(figsize=(6, 3), layout="constrained")[1] if ax is None else ax
    steps, window = np.arange(1, len(losses) + 1), len(losses) // 20
    if len(losses) < SMOOTH_FROM:
        ax.plot(steps, losses, color=STRONG, marker="o" if len(losses) == 1 else None)
    else:
        mean = np.convolve(losses, np.full(window, 1 / window), mode="valid")
        ax.plot(steps, losses, color=FAINT, linewidth=0.8)
        ax.plot(steps[window // 2 :][: len(mean)], mean, color=STRONG, label=f"mean over {window}")
        ax.legend(frameon=False)
    ax.set(xlabel=STEP.get(fit.engine.name, "step"), ylabel="loss")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _new_grid(count, classes, columns=3) -> np.ndarray:
    """Axes of a new figure, flat, those to spare removed; a cell has room for its number."""
    columns = min(columns, count)
    rows, side = -(-count // columns), max(2.2, 0.4 * min(classes, NUMBERS_UP_TO))
    figure, axes = plt.subplots(
        rows, columns, figsize=(columns * side + 1, rows * (side + 0.3) + 0.7), squeeze=False, layout="constrained"
    )
    for spare in axes.flat[count:]:
        spare.remove()
    return axes.ravel()[:count]


def _heat_map(ax, matrix, names, largest=1.0):
    names = [str(name) for name in names]
    image = ax.imshow(matrix, cmap=COLOURS, vmin=0, vmax=largest)
    ax.set_yticks(range(len(names)), names)
    level = max(map(len, names)) <= LEVEL_UP_TO
    slant = {} if level else dict(rotation=45, ha="right", rotation_mode="anchor")
    ax.set_xticks(range(len(names)), names, **slant)
    ax.set(xlabel="label given", ylabel="true class")
    ax.tick_params(length=0)
    ax.spines[:].set_color("0.8")
    if len(names) <= NUMBERS_UP_TO:
        for (row, column), value in np.ndenumerate(matrix):
            dark = value > 0.33 * largest  # where white is easier to read than grey
            ax.text(column, row, _short(value), ha="center", va="center", fontsize=8, color="white" if dark else "0.2")
    return image


def _short(value) -> str:
    """Two digits without the zero in front; nothing for what rounds to nothing."""
    text = f"{value:.2f}"
    return "" if text == "0.00" else text.removeprefix("0").removesuffix(".00")


def _label_sides(ax, left, bottom):
    ax.tick_params(labelleft=left, labelbottom=bottom)
    ax.yaxis.label.set_visible(left)
    ax.xaxis.label.set_visible(bottom)
