"""What holds for every model in `models/`: a new file is tested by existing."""

import warnings
from functools import cache
from itertools import product

import arviz as az
import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, config_enumerate

import pyrocrowd
from pyrocrowd import EM, MAP, NUTS, SVI, Crowd, metrics, zoo
from pyrocrowd.check import examine
from pyrocrowd.data.simulate import from_confusions, hammers_and_spammers
from pyrocrowd.infer.exact import explain, sample_sites
from pyrocrowd.infer.run import bind, workspace

ENGINES = {"em": EM(max_iter=5), "map": MAP(steps=5), "svi": SVI(steps=5, draws=60), "nuts": NUTS(draws=4, warmup=4)}

# Every way in which a model's options change its likelihood; a model that is not named here is tested as it comes.
VARIANTS = {
    "conal": [
        {},
        {"likelihood": "per_annotation"},
        {"omega": "annotator", "apart": 0.1},
        {"strength": 0, "omega": 0.3},
        {"link": "softmax_linear"},
        {"link": "softmax_linear", "likelihood": "per_annotation", "strength": 0, "apart": 1e-5},
    ],
    "crowd_layer": [
        {},
        {"layer": "weights"},
        {"layer": "bias"},
        {"layer": "weights_bias"},
        {"layer": "scalar", "start": 2.0},
        {"layer": "stacked"},
        {"likelihood": "joint"},
        {"likelihood": "joint", "layer": "stacked"},
    ],
    "dawid_skene": [{}, {"likelihood": "per_annotation"}, {"smoothing": 1.0}],
    "majority_vote": [{}, {"vote": "hard"}],
    "trace": [{}, {"likelihood": "joint"}, {"rank": 1}, {"lam": 0.0}, {"rank": 2, "likelihood": "joint"}],
}
CASES = [(name, options) for name in zoo.builtin_names() for options in VARIANTS.get(name, [{}])]
JOINT = [case for case in CASES if zoo.find(case[0]).settle(case[1]).get("likelihood") != "per_annotation"]
HAS_EM = [
    case
    for case in JOINT
    if zoo.find(case[0]).m_step is not None and not case[1].get("apart") and case[1].get("link") != "softmax_linear"
]
LEARNS_ANNOTATORS = [name for name in zoo.builtin_names() if name != "majority_vote"]


def named(cases):
    return pytest.mark.parametrize(
        ("name", "options"), cases, ids=["-".join([name, *map(str, options.values())]) for name, options in cases]
    )


def prepared(name, options, crowd):
    entry = zoo.find(name)
    bound = bind(entry, crowd, entry.settle(options))
    if isinstance(bound, torch.nn.Module):
        bound.eval()
    return bound, examine(bound, crowd, name)


@cache
def needs_features(name):
    """Whether a model says that it cannot do without item features."""
    try:
        prepared(name, {}, Crowd.from_matrix([[0, 1], [1, 1]]))
    except pyrocrowd.PyrocrowdError as refusal:
        return "features" in str(refusal)
    return False


def fitted(name, crowd, **options):
    """A fit as it comes. A model that needs a network gets a small one that begins at zero: a random one would know
    the classes by their numbers from the start."""
    if not needs_features(name):
        return pyrocrowd.fit(name, crowd, seed=1, **options)
    network = torch.nn.Linear(*crowd.feature_shape, crowd.n_classes)
    torch.nn.init.zeros_(network.weight)
    torch.nn.init.zeros_(network.bias)
    return pyrocrowd.fit(name, crowd, MAP(steps=200, learning_rate=0.1), seed=1, net=network, **options)


def values_drawn_from_the_prior(bound, anatomy, batch):
    trace = poutine.trace(bound).get_trace(batch)
    return {name: trace.nodes[name]["value"].detach() for name in anatomy.latent}


def explained(name, options, crowd):
    """A model, values drawn from its prior, and what the exact pass finds for them."""
    bound, anatomy = prepared(name, options, crowd)
    batch = crowd.batch()
    values = values_drawn_from_the_prior(bound, anatomy, batch)
    return bound, anatomy, batch, values, explain(bound, batch, values, anatomy)


def every_assignment(bound, batch, values, anatomy):
    """Log-joint of the labels with every combination of the discrete sites, one explicit run for each."""
    shapes = {"items": (len(batch),), "annotations": tuple(batch.mask.shape)}
    places = []  # (site, index) of every discrete value that counts; padded slots stay at zero and score nothing
    for name, plate in anatomy.enumerated.items():
        cells = np.ndindex(shapes[plate])
        places += [(name, cell) for cell in cells if plate == "items" or bool(batch.mask[cell])]
    sizes = {name: _cardinality(bound, batch, name, values) for name in anatomy.enumerated}
    for choice in product(*[range(sizes[name]) for name, _ in places]):
        discrete = {name: torch.zeros(shapes[plate]).long() for name, plate in anatomy.enumerated.items()}
        for (name, cell), value in zip(places, choice, strict=True):
            discrete[name][cell] = value
        discrete = {name: value.to(_dtype(bound, batch, name, values)) for name, value in discrete.items()}
        trace = poutine.trace(poutine.condition(bound, data=values | discrete)).get_trace(batch)
        trace.compute_log_prob()
        local = [
            site["log_prob_sum"]
            for name, site in sample_sites(trace)
            if name not in values and any(frame.name == "items" for frame in site["cond_indep_stack"])
        ]
        yield discrete, sum(local).item()


def _site(bound, batch, name, values):
    return poutine.trace(poutine.condition(bound, data=values)).get_trace(batch).nodes[name]


def _cardinality(bound, batch, name, values):
    return len(_site(bound, batch, name, values)["fn"].enumerate_support(expand=False))


def _dtype(bound, batch, name, values):
    return _site(bound, batch, name, values)["value"].dtype


@named(CASES)
def test_enumerated_log_joint_equals_the_sum_over_all_truths(name, options, tiny):
    bound, anatomy, batch, values, found = explained(name, options, tiny)
    totals = np.array([total for _, total in every_assignment(bound, batch, values, anatomy)])
    assert found.evidence.sum().item() == pytest.approx(np.logaddexp.reduce(totals), abs=1e-9)


@named([case for case in JOINT if case[0] != "majority_vote"])
def test_marginals_equal_those_of_brute_force(name, options, tiny):
    bound, anatomy, batch, values, found = explained(name, options, tiny)
    runs = list(every_assignment(bound, batch, values, anatomy))
    weights = np.exp(np.array([total for _, total in runs]) - np.logaddexp.reduce([total for _, total in runs]))
    for site in anatomy.enumerated:
        marginal = found.truth if site == "truth" else found.marginals[site]
        counted = torch.zeros_like(marginal)
        for (discrete, _), weight in zip(runs, weights, strict=True):
            counted += weight * torch.nn.functional.one_hot(discrete[site].long(), marginal.shape[-1])
        mask = slice(None) if anatomy.enumerated[site] == "items" else batch.mask
        assert torch.allclose(marginal[mask], counted[mask], atol=1e-9)


@named([case for case in CASES if case[0] != "majority_vote"])
def test_the_exact_pass_agrees_with_pyros_own_enumeration(name, options, tiny):
    bound, anatomy, batch, values, found = explained(name, options, tiny)
    conditioned = poutine.condition(config_enumerate(bound), data=values)
    elbo = TraceEnum_ELBO if anatomy.enumerated else Trace_ELBO
    loss = elbo(max_plate_nesting=anatomy.nesting).loss(conditioned, lambda batch: None, batch)
    ours = found.evidence.sum() + found.log_prior + found.local_log_prior
    assert -loss == pytest.approx(ours.item(), abs=1e-8)


@named([case for case in CASES if case[0] != "majority_vote"])  # which counts labels and cannot draw them
def test_labels_drawn_from_the_model_are_in_range(name, options, tiny):
    bound, _ = prepared(name, options, tiny)
    drawn = poutine.trace(bound).get_trace(tiny.batch().hide_labels()).nodes["label"]["value"]
    assert drawn.shape == tiny.batch().mask.shape
    assert ((drawn >= 0) & (drawn < tiny.n_classes)).all()


@named(CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_a_finite_fit_with_the_same_fields(name, options, engine, tiny):
    bound, _ = prepared(name, options, tiny)
    trains = isinstance(bound, torch.nn.Module) and any(one.requires_grad for one in bound.parameters())
    if (engine == "em" and (name, options) not in HAS_EM) or (engine == "nuts" and trains):
        with pytest.raises(pyrocrowd.PyrocrowdError, match="EM needs|untrained"):
            pyrocrowd.fit(name, tiny, ENGINES[engine], **options)
        return
    fit = pyrocrowd.fit(name, tiny, ENGINES[engine], **options)
    assert np.isfinite(fit.losses).all() and np.isfinite(fit.log_likelihood)
    assert np.allclose(fit.truth.sum(-1), 1)
    assert all(np.isfinite(draws).all() for draws in fit.draws.values())
    assert list(fit.labels().columns) == ["item", "label", "confidence", "0", "1"]
    annotators = fit.annotators()
    assert (annotators.skill_low <= annotators.skill + 1e-12).all()
    assert (annotators.skill <= annotators.skill_high + 1e-12).all()
    assert fit.confusion().sel(annotator=1).shape == (2, 2)
    assert "stopped" in fit.notes


@named(HAS_EM)
def test_em_never_loses_log_posterior(name, options):
    crowd = spammed_crowd(items=80).crowd
    fit = pyrocrowd.fit(name, crowd, EM(max_iter=60, tol=0), **options)
    assert np.diff(fit.losses).max(initial=-1) <= 1e-8


@named([case for case in HAS_EM if case[0] in LEARNS_ANNOTATORS and case[1].get("strength", 1)])
def test_the_em_optimum_is_the_map_optimum(name, options):
    # Plenty of labels per annotator: with few, both climb, but not always the same of several hills.
    crowd = spammed_crowd(items=150, labels_per_item=5).crowd
    em = pyrocrowd.fit(name, crowd, EM(tol=1e-12), **options)
    map_ = pyrocrowd.fit(name, crowd, MAP(steps=3000, learning_rate=0.05, patience=0), **options)
    assert map_.losses[-1] == pytest.approx(em.losses[-1], rel=1e-5)
    assert np.abs(map_.truth - em.truth).max() < 0.01


@pytest.mark.parametrize("name", LEARNS_ANNOTATORS)
def test_it_beats_majority_vote_on_a_crowd_with_spammers(name):
    crowd = spammed_crowd(items=300, features=needs_features(name)).crowd
    fit = fitted(name, crowd)
    voted = metrics.accuracy(crowd.truth, metrics.soft_vote(crowd))
    assert fit.metrics()["accuracy"] > voted + 0.1


@pytest.mark.parametrize("name", LEARNS_ANNOTATORS)
def test_it_recovers_the_confusion_matrices_of_a_large_crowd(name):
    made = spammed_crowd(items=3000, labels_per_item=5, features=needs_features(name))
    # Without a truth that all labels of an item share, a matrix and the doubts of a classifier can stand in for each
    # other.
    joint = {"likelihood": "joint"} if "likelihood" in zoo.find(name).hyper_parameters else {}
    fit = fitted(name, made.crowd, **joint)
    assert np.abs(fit.confusion().values - made.confusion).mean() < 0.02


@pytest.mark.parametrize("name", zoo.builtin_names())
class TestInvariance:
    """The answer does not depend on how rows, annotators and classes are numbered, nor on somebody idle."""

    def base(self, name):
        crowd = spammed_crowd(items=60, features=needs_features(name)).crowd
        return crowd, fitted(name, crowd)

    def test_to_the_order_of_the_rows(self, name):
        crowd, fit = self.base(name)
        shuffled = crowd.keep(np.random.default_rng(0).permutation(crowd.n_annotations))
        assert np.allclose(fitted(name, shuffled).truth, fit.truth, atol=1e-6)

    def test_to_the_numbering_of_annotators(self, name):
        crowd, fit = self.base(name)
        order = np.random.default_rng(0).permutation(crowd.n_annotators)
        renamed = crowd._with(annotator=order[crowd.annotator])
        again = fitted(name, renamed)
        assert np.allclose(again.truth, fit.truth, atol=1e-6)
        assert np.allclose(again.confusion().values[order], fit.confusion().values, atol=1e-6)

    def test_to_the_numbering_of_classes(self, name):
        crowd, fit = self.base(name)
        order = np.random.default_rng(0).permutation(crowd.n_classes)
        renamed = crowd._with(label=order[crowd.label])
        again = fitted(name, renamed)
        assert np.allclose(again.truth[:, order], fit.truth, atol=1e-6)

    def test_to_an_idle_annotator(self, name):
        crowd, fit = self.base(name)
        larger = crowd._with(annotator_names=np.append(crowd.annotator_names, 99))
        assert np.allclose(fitted(name, larger).truth, fit.truth, atol=1e-6)

    def test_to_the_size_of_the_batches_of_an_evaluation(self, name, monkeypatch):
        crowd, fit = self.base(name)
        whole = Crowd.batches
        monkeypatch.setattr(Crowd, "batches", lambda self, size=None, generator=None: whole(self, size or 7, generator))
        assert np.allclose(fitted(name, crowd).truth, fit.truth, atol=1e-6)


@named(CASES)
@pytest.mark.parametrize("engine", ["map", "svi"])
def test_a_fit_is_whole_in_arviz_and_comes_back_equal_from_disk(name, options, engine, tiny, tmp_path):
    fit = pyrocrowd.fit(name, tiny, ENGINES[engine], **options)
    data = fit.to_arviz()
    for site, draws in fit.draws.items():
        assert np.array_equal(data["posterior"][site].values, draws)
    assert np.array_equal(data["observed_data"]["label"].values, tiny.label)
    assert np.isfinite(data["log_likelihood"]["label"].values).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ: one chain has no r_hat, and five labels are few for loo
        if fit.anatomy.latent and engine == "svi":
            assert len(az.summary(data)) == sum(draws[0, 0].size for draws in fit.draws.values())
            assert np.isfinite(float(getattr(az.loo(data), "elpd", None) or az.loo(data).elpd_loo))
    again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert again.labels().equals(fit.labels()) and again.annotators().equals(fit.annotators())
    assert all(np.array_equal(again.draws[site], draws) for site, draws in fit.draws.items())
    assert np.array_equal(again.pointwise, fit.pointwise) and again.metrics() == fit.metrics()


@pytest.mark.parametrize("name", zoo.builtin_names())
def test_its_page_tells_the_story_and_names_its_sites(name):
    entry = zoo.find(name)
    assert len(entry.page) > 500 and entry.summary
    tiny = Crowd.from_matrix([[0, 1], [1, 1]], features=np.eye(2))
    with workspace(tiny.device):
        _, anatomy = prepared(name, {}, tiny)
    for site in [*anatomy.latent, *anatomy.enumerated, "label"]:
        assert f"`{site}`" in entry.page


def test_the_per_annotation_loss_of_dawid_skene_is_the_cross_entropy_written_out(tiny):
    bound, anatomy = prepared("dawid_skene", {"likelihood": "per_annotation"}, tiny)
    values = values_drawn_from_the_prior(bound, anatomy, tiny.batch())
    by_hand = 0.0
    for annotator, label in zip(tiny.annotator, tiny.label, strict=True):
        by_hand += torch.log((values["prevalence"] * values["confusion"][annotator, :, label]).sum())
    found = explain(bound, tiny.batch(), values, anatomy)
    assert float(found.evidence.sum()) == pytest.approx(float(by_hand), abs=1e-5)


LAYERS = {  # scores from class probabilities and one annotator's weights
    "matrix": lambda p, own: p @ own["matrix"],
    "weights": lambda p, own: torch.diag(own["weight"]) @ p,
    "bias": lambda p, own: p + own["offset"],
    "weights_bias": lambda p, own: torch.diag(own["weight"]) @ p + own["offset"],
    "scalar": lambda p, own: own["weight"].item() * p,
    "stacked": lambda p, own: (p @ own["first_matrix"]).softmax(-1) @ own["matrix"],
}


@pytest.mark.parametrize("layer", LAYERS)
def test_the_loss_of_crowd_layer_is_the_cross_entropy_of_its_layer_written_out(layer, tiny):
    bound, anatomy = prepared("crowd_layer", {"layer": layer, "net": "linear"}, tiny)
    with torch.no_grad():
        for parameter in bound.parameters():
            parameter.normal_()
        p = bound.net(torch.as_tensor(tiny.features)).softmax(-1)
        found = explain(bound, tiny.batch(), {}, anatomy)
        by_hand = 0.0
        for item, annotator, label in zip(tiny.item, tiny.annotator, tiny.label, strict=True):
            own = {name: one[annotator] for name, one in bound.named_parameters() if not name.startswith("net")}
            scores = LAYERS[layer](p[item], own)
            by_hand += scores[label] - scores.exp().sum().log()
    assert float(found.evidence.sum()) == pytest.approx(float(by_hand), abs=1e-10)
    assert torch.equal(found.truth, p)


def test_the_matrices_of_crowd_layer_are_the_soft_max_of_each_row_of_its_weights(tiny):
    fit = pyrocrowd.fit("crowd_layer", tiny, MAP(steps=20))
    assert np.allclose(fit.confusion().values, fit.weights["module.matrix"].softmax(-1), atol=1e-12)
    assert fit.predict_proba(tiny.features).shape == (3, 2)


def test_layers_have_as_many_weights_as_the_papers_count(tiny):
    counts = {}
    for layer in ("matrix", "stacked", "weights", "scalar"):
        bound, _ = prepared("crowd_layer", {"layer": layer}, tiny)
        counts[layer] = sum(one.numel() for name, one in bound.named_parameters() if not name.startswith("net"))
    assert counts == {"matrix": 2 * 2**2, "stacked": 2 * 2 * 2**2, "weights": 2 * 2, "scalar": 2}  # R = C = 2


@pytest.mark.parametrize("net", ["mlp", torch.nn.Linear(2, 2)])
def test_crowd_layer_asks_for_features_in_one_sentence(net):
    with pytest.raises(pyrocrowd.PyrocrowdError, match="features and the crowd has none: give them with --features"):
        pyrocrowd.fit("crowd_layer", Crowd.from_matrix([[0, 1], [1, 1]]), net=net)


def test_joint_and_per_annotation_probabilities_of_the_specified_oracle():
    """C = 2, p = (.7, .3): joint 0.294, per annotation 0.69 x 0.49 = 0.3381."""
    crowd = Crowd.from_matrix([[0, 1]], classes=[0, 1])
    values = {
        "prevalence": torch.tensor([0.7, 0.3]),
        "confusion": torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.3, 0.7]]]),
    }
    for likelihood, expected in (("joint", 0.294), ("per_annotation", 0.3381)):
        bound, anatomy = prepared("dawid_skene", {"likelihood": likelihood}, crowd)
        found = explain(bound, crowd.batch(), values, anatomy)
        assert float(found.evidence.sum().exp()) == pytest.approx(expected, abs=1e-12)


def test_majority_vote_gives_the_shares_or_the_winner():
    crowd = Crowd.from_matrix([[0, 1, 1], [0, 0, 1], [0, 1, -1]])
    assert np.allclose(pyrocrowd.fit("majority_vote", crowd).truth, [[1 / 3, 2 / 3], [2 / 3, 1 / 3], [0.5, 0.5]])
    assert np.allclose(pyrocrowd.fit("majority_vote", crowd, vote="hard").truth, [[0, 1], [1, 0], [1, 0]])


def spammed_crowd(items, labels_per_item=4, features=False):
    """Three classes, five decent annotators and five who always say 0: majority vote fails."""
    truth = np.random.default_rng(3).integers(3, size=items)
    told = np.random.default_rng(5).normal(np.eye(3)[truth], 0.3) if features else None
    return from_confusions(truth, hammers_and_spammers(5, 5, 3), labels_per_item, seed=4, features=told)


def test_the_parameter_store_of_the_caller_is_left_alone(tiny):
    pyro.param("mine", torch.ones(2))
    pyrocrowd.fit("dawid_skene", tiny, MAP(steps=3))
    assert list(pyro.get_param_store().keys()) == ["mine"]
