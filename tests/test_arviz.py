"""The posterior in ArviZ, on both of its lines (0.x InferenceData, 1.x DataTree)."""

import warnings

import arviz as az
import numpy as np
import pytest

import pyrocrowd
from pyrocrowd import EM, SVI
from pyrocrowd.data.sets import digits


@pytest.fixture(scope="module")
def fit():
    return pyrocrowd.fit("dawid_skene", digits(items=150).crowd, SVI(steps=150, draws=80))


def quietly(function, *arguments, **options):
    """ArviZ warns that one chain has no r_hat and that a Pareto k may be high: not what these tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


def test_names_are_coordinates(fit):
    posterior = fit.to_arviz()["posterior"]
    drawn = posterior["confusion"].sel(annotator="ada", true_class=3, given_label=3).values
    place = list(fit.crowd.annotator_names).index("ada")
    assert np.array_equal(drawn, fit.draws["confusion"][:, :, place, 3, 3])
    assert posterior["confusion"].dims == ("chain", "draw", "annotator", "true_class", "given_label")
    assert posterior["prevalence"].dims == ("chain", "draw", "class")


def test_groups_hold_labels_likelihoods_and_the_truth(fit):
    data = fit.to_arviz()
    assert np.array_equal(data["observed_data"]["label"].values, fit.crowd.label)
    assert data["log_likelihood"]["label"].shape == (1, 80, fit.crowd.n_annotations)
    truth = data["constant_data"]["truth_probability"].sel(item=fit.crowd.item_names[7])
    assert np.array_equal(truth.values, fit.truth[7])


def test_summary_and_loo_just_work(fit):
    data = fit.to_arviz()
    summary = quietly(az.summary, data, var_names=["prevalence"])
    means = fit.draws["prevalence"].mean((0, 1))
    assert np.allclose(summary["mean"].astype(float), means, atol=0.006)
    loo = quietly(az.loo, data)
    estimate = float(loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd)
    assert -3.0 * fit.crowd.n_annotations < estimate < -0.5 * fit.crowd.n_annotations


def test_loo_prefers_the_model_that_knows_its_annotators(fit):
    """Against the same model with a prior so strong that all annotators are alike."""
    alike = pyrocrowd.fit("dawid_skene", fit.crowd, SVI(steps=150, draws=80), strength=1e5)
    scores = [quietly(az.loo, one.to_arviz()) for one in (fit, alike)]
    better, worse = (float(score.elpd_loo if hasattr(score, "elpd_loo") else score.elpd) for score in scores)
    assert better > worse + 20


def test_forest_plot_just_works(fit):
    assert quietly(az.plot_forest, fit.to_arviz(), var_names=["prevalence"]) is not None


def test_the_saved_posterior_opens_in_arviz(fit, tmp_path):
    folder = fit.save(tmp_path / "run")
    data = az.from_netcdf(str(folder / "posterior.nc"))
    assert np.array_equal(data["posterior"]["prevalence"].values, fit.draws["prevalence"])
    assert set(data["posterior"]["annotator"].values) == set(fit.crowd.annotator_names)
    again = pyrocrowd.load(folder).to_arviz()
    for group in ("posterior", "log_likelihood", "observed_data", "constant_data"):
        for name, values in fit.to_arviz()[group].items():
            assert np.array_equal(values.values, again[group][name].values), (group, name)


def test_a_point_estimate_is_one_draw():
    fit = pyrocrowd.fit("dawid_skene", digits(items=60).crowd, EM(max_iter=5))
    assert fit.to_arviz()["posterior"]["confusion"].shape[:2] == (1, 1)


def test_a_sampler_keeps_its_diary():
    fit = pyrocrowd.fit("dawid_skene", digits(items=20).crowd, pyrocrowd.NUTS(draws=3, warmup=3, chains=2))
    stats = fit.to_arviz()["sample_stats"]
    assert stats["diverging"].shape == (2, 3) and np.isfinite(stats["lp"]).all()
