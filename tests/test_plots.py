"""Pictures show the numbers that they were given, under the right names, and open no figure that nobody asked for."""

import subprocess
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

import pyrocrowd
from pyrocrowd import EM, MAP, Crowd, PyrocrowdError, metrics, plots
from pyrocrowd.data.simulate import conal


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    plt.close("all")


@pytest.fixture
def crowd():
    """Four items, three annotators, classes ant, bee and cow; both annotators who saw item 0 took the ant for a bee."""
    rows = np.array([(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 2, 2), (2, 1, 2), (3, 0, 0), (3, 2, 2)])
    names = dict(item_names=range(4), annotator_names=["x", "y", "z"], class_names=["ant", "bee", "cow"])
    return Crowd(*rows.T, **names, truth=[0, 1, 2, 0])


@pytest.fixture(scope="module")
def made():
    return conal(items=200, annotators=8, classes=4)


def matrices(count, classes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(classes), (count, classes))


def ticks(ax):
    return [[tick.get_text() for tick in axis.get_ticklabels()] for axis in (ax.yaxis, ax.xaxis)]


def numbers(ax):
    return [text.get_text() for text in ax.texts]


def shown(ax):
    return np.asarray(ax.images[0].get_array())


def is_labelled(axis):
    return axis.label.get_visible() and len(axis.get_ticklabels()) > 0


# ---------------------------------------------------------------- confusion matrices


def test_a_grid_shows_every_matrix_with_its_title_and_the_names_of_the_classes():
    given, names = matrices(3, 4), ["a", "b", "c", "d"]
    assert plots.confusion_grid(given).shape == (3,)
    axes = plots.confusion_grid(given, names, ["one", "two", "three"], ax=plt.subplots(1, 3)[1])
    for ax, matrix, title in zip(axes, given, ["one", "two", "three"], strict=True):
        np.testing.assert_array_equal(shown(ax), matrix)
        assert ax.get_title() == title
        assert ticks(ax) == [names, names]
        assert (ax.get_ylabel(), ax.get_xlabel()) == ("true class", "label given")


def test_all_matrices_of_a_grid_share_one_colour_scale():
    axes = plots.confusion_grid([np.eye(3), np.full((3, 3), 1 / 3)])
    assert {ax.images[0].get_clim() for ax in axes} == {(0, 1)}
    assert len({ax.images[0].get_cmap().name for ax in axes}) == 1


def test_cells_hold_two_digits_and_nothing_where_there_is_nothing():
    (ax,) = plots.confusion_grid([[1, 0], [0.254, 0.746]])
    assert numbers(ax) == ["1", "", ".25", ".75"]
    assert ticks(ax) == [["0", "1"], ["0", "1"]]


def test_many_classes_get_a_colour_bar_instead_of_numbers():
    few, many = (plots.confusion_grid(matrices(2, classes)) for classes in (10, 11))
    assert len(numbers(few[0])) == 100 and not numbers(many[0])
    assert len(few[0].figure.axes) == 2 and len(many[0].figure.axes) == 3


def test_names_stand_only_at_the_outer_sides_of_a_grid():
    axes = plots.confusion_grid(matrices(5, 2), columns=3)  # 3 above, 2 below: the third has nothing below it
    assert [is_labelled(ax.yaxis) for ax in axes] == [True, False, False, True, False]
    assert [is_labelled(ax.xaxis) for ax in axes] == [False, False, True, True, True]
    assert len(axes[0].figure.axes) == 5


def test_long_names_are_slanted_and_short_ones_are_not():
    level, slanted = (plots.confusion_grid(np.eye(2), names)[0] for names in (["a", "b"], ["tall building", "b"]))
    assert level.get_xticklabels()[0].get_rotation() == 0
    assert slanted.get_xticklabels()[0].get_rotation() == 45


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(titles=["one"]), "1 titles where there should be 2"),
        (dict(names=["a"]), "1 names where there should be 3"),
        (dict(matrices=np.ones((2, 3))[:, :, None]), "give .matrices, classes, classes."),
    ],
)
def test_a_grid_refuses_what_does_not_fit(options, message):
    with pytest.raises(PyrocrowdError, match=message):
        plots.confusion_grid(**dict(matrices=matrices(2, 3)) | options)


def test_a_grid_refuses_too_few_axes():
    with pytest.raises(PyrocrowdError, match="1 axes where there should be 2"):
        plots.confusion_grid(matrices(2, 3), ax=plt.subplots()[1])


# ---------------------------------------------------------------- a crowd


def test_common_mistakes_are_those_of_the_metric(crowd):
    ax = plots.common_mistakes(crowd)
    np.testing.assert_array_equal(shown(ax), metrics.common_mistakes(crowd))
    assert ticks(ax) == [["ant", "bee", "cow"]] * 2
    assert numbers(ax) == ["", ".67", ".33", "", "", ".33", "", "", ""]
    assert ax.images[0].get_clim() == (0, pytest.approx(2 / 3))


def test_common_mistakes_may_be_seen_against_another_truth(crowd):
    truth = np.eye(3)[[1, 1, 2, 0]]
    np.testing.assert_array_equal(shown(plots.common_mistakes(crowd, truth)), metrics.common_mistakes(crowd, truth))


def test_a_crowd_without_mistakes_has_a_picture_too(crowd):
    crowd.label = crowd.truth[crowd.item]
    assert not shown(plots.common_mistakes(crowd)).any()


def test_bars_by_weight_are_the_shares_of_the_metric(crowd):
    weight = np.array([0.9, 0.8, 0.7, 0.6, 0.2, 0.1, 0.3])
    ax = plots.classes_by_weight(crowd, weight)
    upper, lower = ([bar.get_width() for bar in bars] for bars in ax.containers)
    np.testing.assert_allclose([upper, lower], metrics.classes_by_weight(crowd, weight))
    np.testing.assert_allclose([upper, lower], [[1 / 2, 1 / 2, 0], [1 / 2, 0, 1 / 2]])
    assert ticks(ax)[0] == ["ant", "bee", "cow"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["half of high weight", "half of low weight"]


def test_bars_by_weight_take_probabilities_for_the_truth(crowd):
    soft = np.full((4, 3), 1 / 3)
    ax = plots.classes_by_weight(crowd, np.arange(7), soft)
    np.testing.assert_allclose([bar.get_width() for bars in ax.containers for bar in bars], 1 / 3)


# ---------------------------------------------------------------- a fit


def test_the_curve_of_a_short_run_is_its_losses(made):
    fit = pyrocrowd.fit("dawid_skene", made.crowd, EM(max_iter=5))
    ax = plots.loss_curve(fit)
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_data(), [np.arange(1, len(fit.losses) + 1), fit.losses])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("iteration", "loss")


def test_the_curve_of_a_long_run_has_a_running_mean(made):
    fit = pyrocrowd.fit("dawid_skene", made.crowd, MAP(steps=120))
    ax = plots.loss_curve(fit)
    each, mean = ax.lines
    np.testing.assert_array_equal(each.get_ydata(), fit.losses)
    np.testing.assert_allclose(mean.get_ydata()[[0, -1]], [np.mean(fit.losses[:6]), np.mean(fit.losses[-6:])])
    assert ax.get_xlabel() == "step"


@pytest.mark.parametrize("steps", [100, 120, 157])
def test_a_straight_loss_is_its_own_running_mean(steps):
    straight = SimpleNamespace(losses=-2.0 * np.arange(steps), engine=MAP())
    mean = plots.loss_curve(straight).lines[1]
    middle = -2.0 * (mean.get_xdata() - 1)
    assert np.abs(mean.get_ydata() - middle).max() <= 1 + 1e-9  # an even window has its middle between two steps


# ---------------------------------------------------------------- axes of the caller, and what is learned by CoNAL


def test_every_picture_is_drawn_into_the_axes_that_it_is_given_and_opens_no_figure(crowd):
    fit = pyrocrowd.fit("majority_vote", crowd)
    pictures = [
        lambda ax: plots.confusion_grid(np.eye(3), ax=ax)[0],
        lambda ax: plots.common_mistakes(crowd, ax=ax),
        lambda ax: plots.classes_by_weight(crowd, np.arange(7), ax=ax),
        lambda ax: plots.loss_curve(fit, ax=ax),
    ]
    figure, axes = plt.subplots(2, 2)
    assert [draw(ax) for draw, ax in zip(pictures, axes.flat, strict=True)] == list(axes.flat)
    assert all(ax.has_data() for ax in axes.flat)
    given = plots.confusion_grid(matrices(4, 2), ax=axes)
    assert list(given) == list(axes.flat)
    assert plt.get_fignums() == [figure.number]


def test_what_conal_learns_can_be_drawn_without_a_warning(made):
    fit = pyrocrowd.fit("conal", made.crowd, MAP(epochs=2, batch_size=50))
    grid = plots.confusion_grid(np.concatenate([fit.draws["common"][0], fit.draws["individual"][0, 0, :3]]))
    np.testing.assert_array_equal(shown(grid[0]), fit.draws["common"][0, 0])
    for ax in (grid[0], plots.classes_by_weight(made.crowd, fit.noted["omega"]), plots.loss_curve(fit)):
        ax.figure.canvas.draw()


def test_importing_the_house_costs_no_matplotlib():
    code = "import sys, pyrocrowd; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert pyrocrowd.plots is plots
