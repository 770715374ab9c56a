"""CoNAL: what only this paper claims, its formulas written out by hand, and its checklist.

Chu, Ma, Wang (2021), Learning from Crowds by Modeling Common Confusions, doi:10.1609/aaai.v35i7.16730.
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import expit, logit, softmax
from torch import nn

import pyrocrowd
from pyrocrowd import EM, MAP, NUTS, SVI, Crowd, PyrocrowdError, metrics, zoo
from pyrocrowd.check import examine
from pyrocrowd.data import simulate
from pyrocrowd.distributions import imagined_labels
from pyrocrowd.infer.exact import explain_crowd, label_tables
from pyrocrowd.infer.run import Task, bind, pick_engine
from pyrocrowd.infer.svi import _loss_function
from pyrocrowd.reproduce import reproduce

LINKS = ("mixture", "softmax_linear")
START = 2.0  # weights begin at twice the identity (released code)
LEAST, MOST = expit(-1), expit(1)  # of omega, with both embeddings of length one


@pytest.fixture
def small():
    """4 items, 3 annotators, 3 classes, with gaps."""
    features = np.random.default_rng(0).normal(size=(4, 2))
    return Crowd.from_matrix([[0, 1, -1], [2, 2, 1], [1, -1, -1], [0, 2, 1]], features=features)


@pytest.fixture(scope="module")
def made():
    return simulate.conal(items=150, annotators=6, classes=3, dimension=5)


@pytest.fixture(scope="module")
def crowd(made):
    return made.crowd


@pytest.fixture(scope="module")
def bare(crowd):
    """The same labels without features."""
    return crowd._with(features=None)


def built(crowd, name="conal", **options):
    """A model as it starts, and its anatomy."""
    torch.manual_seed(0)  # models that differ in an option begin with the same network
    entry = zoo.find(name)
    bound = bind(entry, crowd, entry.settle(options)).eval()
    return bound, examine(bound, crowd, name)


def shaken(crowd, name="conal", **options):
    """A model with random weights, and its anatomy."""
    bound, anatomy = built(crowd, name, **options)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for one in bound.parameters():
            one.copy_(torch.randn(one.shape, generator=generator))
    return bound, anatomy


def loss_tensor(bound, anatomy, crowd):
    """The whole loss that MAP takes the gradient of; for models without continuous sites, which need a guide."""
    assert not anatomy.latent
    task = Task(bound, crowd, anatomy, None, 0, "conal")
    return _loss_function(MAP(), task)(bound, lambda batch: None, crowd.batch())


def loss_of(bound, anatomy, crowd):
    return loss_tensor(bound, anatomy, crowd).item()


def numbers(tensor):
    return tensor.detach().numpy()


def rows(crowd):
    return list(zip(crowd.item.tolist(), crowd.annotator.tolist(), crowd.label.tolist(), strict=True))


def class_chances(bound, crowd):
    """p_i of every item."""
    return softmax(numbers(bound.net(torch.as_tensor(crowd.features))), -1)


def omega_by_hand(bound, crowd, item, annotator):
    """The paper's Eq. 3, one pair at a time."""
    who = np.eye(crowd.n_annotators)[annotator]
    u = numbers(bound.of_annotator.weight) @ who + numbers(bound.of_annotator.bias)
    v = numbers(bound.of_item[1].weight) @ crowd.features[item] + numbers(bound.of_item[1].bias)
    return expit((u / np.sqrt((u**2).sum())) @ (v / np.sqrt((v**2).sum())))


@torch.no_grad()
def explained(bound, anatomy, crowd):
    return explain_crowd(bound, crowd, {}, anatomy)


def omegas_of(bound, anatomy, crowd):
    """omega as the model has it, one for every label."""
    return explained(bound, anatomy, crowd).recorded["omega"].numpy()


def weights_of(bound):
    return numbers(bound.common_weights), numbers(bound.individual_weights)


def label_chances(link, p, omega, common, own):
    """Chance of each label for an item with class chances p, from the weights W_g and W_r, in loops."""
    if link == "mixture":
        common, own = softmax(common, -1), softmax(own, -1)
    mixed = np.zeros(len(p))
    for c, label in np.ndindex(common.shape):
        mixed[label] += p[c] * (omega * common[c, label] + (1 - omega) * own[c, label])
    return mixed if link == "mixture" else softmax(mixed)


# -------------------------------------------------------------------- the likelihoods, written out


@pytest.mark.parametrize("apart", [0.0, 0.01])
@pytest.mark.parametrize("link", LINKS)
def test_the_per_annotation_loss_is_the_papers_cross_entropy_minus_its_regulariser(link, apart, small):
    options = dict(net="linear", likelihood="per_annotation", link=link, strength=0, apart=apart)
    bound, anatomy = shaken(small, **options)
    p, (common, individual) = class_chances(bound, small), weights_of(bound)
    by_hand = 0.0
    for item, annotator, label in rows(small):
        omega = omega_by_hand(bound, small, item, annotator)
        by_hand -= np.log(label_chances(link, p[item], omega, common, individual[annotator])[label])
    if link == "mixture":  # there the distance is that of the confusion matrices
        common, individual = softmax(common, -1), softmax(individual, -1)
    for own in individual:
        by_hand -= apart * small.n_annotations * np.sqrt(((common - own) ** 2).sum())
    assert loss_of(bound, anatomy, small) == pytest.approx(by_hand, abs=1e-5)


def test_the_joint_likelihood_is_the_sum_over_all_truths_and_sources():
    crowd = Crowd.from_matrix([[0, 1], [1, 1], [0, 0]], features=np.random.default_rng(0).normal(size=(3, 2)))
    bound, anatomy = shaken(crowd, net="linear", strength=0)
    p, (common, individual) = class_chances(bound, crowd), [softmax(one, -1) for one in weights_of(bound)]
    total = 0.0
    for truth in product(range(2), repeat=3):
        for sources in product(range(2), repeat=6):
            chance = np.prod([p[item, truth[item]] for item in range(3)])
            for source, (item, annotator, label) in zip(sources, rows(crowd), strict=True):
                omega = omega_by_hand(bound, crowd, item, annotator)
                chance *= omega if source else 1 - omega
                chance *= (common if source else individual[annotator])[truth[item], label]
            total += chance
    assert loss_of(bound, anatomy, crowd) == pytest.approx(-np.log(total), abs=1e-9)


def test_the_joint_likelihood_of_the_released_link_is_the_sum_over_all_truths():
    crowd = Crowd.from_matrix([[0, 1], [1, 1], [0, 0]], features=np.random.default_rng(0).normal(size=(3, 2)))
    bound, anatomy = shaken(crowd, net="linear", strength=0, link="softmax_linear")
    p, (common, individual) = class_chances(bound, crowd), weights_of(bound)
    total = 0.0
    for truth in product(range(2), repeat=3):
        chance = np.prod([p[item, truth[item]] for item in range(3)])
        for item, annotator, label in rows(crowd):
            omega = omega_by_hand(bound, crowd, item, annotator)
            chance *= softmax(omega * common + (1 - omega) * individual[annotator], -1)[truth[item], label]
        total += chance
    assert loss_of(bound, anatomy, crowd) == pytest.approx(-np.log(total), abs=1e-9)


def test_joint_and_per_annotation_are_one_where_every_item_has_one_label():
    features = np.random.default_rng(0).normal(size=(4, 2))
    single = Crowd.from_matrix([[0, -1], [-1, 1], [2, -1], [-1, 0]], features=features)
    twice = Crowd.from_matrix([[0, 1], [-1, 1], [2, -1], [-1, 0]], features=features, classes=[0, 1, 2])
    gaps = {}
    for name, crowd in (("single", single), ("twice", twice)):
        losses = [
            loss_of(*shaken(crowd, net="linear", strength=0, likelihood=likelihood), crowd)
            for likelihood in ("joint", "per_annotation")
        ]
        gaps[name] = abs(losses[0] - losses[1])
    assert gaps["single"] < 1e-10 and gaps["twice"] > 1e-3


class Table(nn.Module):
    """A classifier with a score of its own for each class of each item."""

    def __init__(self, items, classes):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(items, classes))

    def forward(self, features):
        return self.scores


def test_the_gradient_at_the_classifier_is_that_of_the_papers_equation_4(small):
    options = dict(likelihood="per_annotation", link="softmax_linear", strength=0)
    bound, anatomy = shaken(small, net=Table(4, 3), **options)
    loss_tensor(bound, anatomy, small).backward()
    p, (common, individual) = softmax(numbers(bound.net.scores), -1), weights_of(bound)
    by_hand = np.zeros_like(p)  # dL/df_i = sum_r omega dL/dh_ir W_g + (1 - omega) dL/dh_ir W_r, here with rows f_i
    for item, annotator, label in rows(small):
        omega, own = omega_by_hand(bound, small, item, annotator), individual[annotator]
        at_h = label_chances("softmax_linear", p[item], omega, common, own) - np.eye(3)[label]
        by_hand[item] += omega * common @ at_h + (1 - omega) * own @ at_h
    through_softmax = p * (by_hand - (p * by_hand).sum(1, keepdims=True))
    assert np.allclose(bound.net.scores.grad, through_softmax, atol=1e-10)


# -------------------------------------------------------------------- links and omega


@pytest.mark.parametrize("link", LINKS)
def test_the_matrix_of_a_pair_is_the_mixture_or_the_soft_max_of_the_mixed_weights(link, small):
    bound, anatomy = shaken(small, net="linear", link=link, strength=0)
    batch, p, (common, individual) = small.batch(), class_chances(bound, small), weights_of(bound)
    tables = numbers(label_tables(bound, batch, {}, anatomy))
    assert batch.mask.sum() == small.n_annotations
    for slot, item in batch.mask.nonzero().tolist():
        annotator = int(batch.annotator[slot, item])
        omega = omega_by_hand(bound, small, item, annotator)
        for c, certain in enumerate(np.eye(3)):
            by_hand = label_chances(link, certain, omega, common, individual[annotator])
            assert np.allclose(tables[slot, item, c], by_hand, atol=1e-12)
        predicted = p[item] @ tables[slot, item]
        assert predicted.sum() == pytest.approx(1, abs=1e-12)
        if link == "mixture":
            two = [p[item] @ softmax(matrix, -1) for matrix in (common, individual[annotator])]
            assert np.allclose(predicted, omega * two[0] + (1 - omega) * two[1], atol=1e-12)


def test_normalised_embeddings_confine_omega(crowd):
    omega = omegas_of(*shaken(crowd), crowd)
    assert LEAST <= omega.min() < omega.max() <= MOST
    assert LEAST == pytest.approx(0.2689, abs=1e-4) and MOST == pytest.approx(0.7311, abs=1e-4)
    line = omegas_of(*shaken(crowd, embedding=1), crowd)  # on a line, two directions are equal or opposite
    assert np.allclose(np.unique(line.round(9)), [LEAST, MOST])


@pytest.mark.parametrize("freed", [{"temperature": 5.0}, {"bias": 2.0}, {"normalise": "annotator"}])
def test_temperature_bias_or_a_free_item_embedding_let_omega_out(freed, crowd):
    omega = omegas_of(*shaken(crowd, **freed), crowd)
    assert omega.max() > MOST + 0.05 and (omega < 1).all() and (omega > 0).all()


def test_temperature_and_bias_are_where_the_formula_has_them(small):
    plain, changed = (omegas_of(*shaken(small, **more), small) for more in ({}, {"temperature": 3.0, "bias": 0.5}))
    assert np.allclose(logit(changed), 3 * logit(plain) + 0.5)


def test_annotators_with_the_same_features_have_the_same_omega(small):
    everyone = Crowd.from_matrix(np.zeros((4, 3), int), features=small.features, classes=[0, 1])
    described = everyone._with(annotator_features=np.array([[1.0, 2.0], [1.0, 2.0], [-3.0, 0.5]]))
    by_identity, by_features = (omegas_of(*shaken(one), one).reshape(4, 3) for one in (everyone, described))
    assert np.allclose(by_features[:, 0], by_features[:, 1]) and np.ptp(by_features[:, 0]) > 1e-3
    assert np.abs(by_features[:, 0] - by_features[:, 2]).min() > 1e-3
    assert np.abs(by_identity[:, 0] - by_identity[:, 1]).min() > 1e-3


def test_annotator_features_are_used_by_a_fit_and_for_new_items(crowd):
    features = np.random.default_rng(1).normal(size=(crowd.n_annotators, 4))
    features[1] = features[0]
    fit = pyrocrowd.fit("conal", crowd._with(annotator_features=features), MAP(steps=20))
    assert fit.weights["module.of_annotator.weight"].shape == (20, 4)
    omega = dict(zip(zip(crowd.item, crowd.annotator, strict=True), fit.noted["omega"], strict=True))
    shared = [item for item in range(crowd.n_items) if (item, 0) in omega and (item, 1) in omega]
    assert shared and all(omega[item, 0] == pytest.approx(omega[item, 1]) for item in shared)
    assert np.allclose(fit.predict_proba(crowd.features[:5]).sum(1), 1)


def test_learned_temperature_and_bias_are_trained(crowd):
    fit = pyrocrowd.fit("conal", crowd, MAP(steps=30), temperature="learned", bias="learned")
    assert abs(fit.weights["module.temperature"] - 1) > 0.01
    assert abs(fit.weights["module.bias"]) > 0.01
    assert "module.bias" not in pyrocrowd.fit("conal", crowd, MAP(steps=1)).weights


# -------------------------------------------------------------------- omega = 0 is CrowdLayer

RELEASED = dict(net="linear", likelihood="per_annotation", link="softmax_linear", strength=0)


def test_without_common_noise_the_released_link_is_crowd_layer_written_out(small):
    bound, anatomy = shaken(small, omega=0, **RELEASED)
    p, (_, individual) = class_chances(bound, small), weights_of(bound)
    by_hand = -sum(np.log(softmax(p[item] @ individual[annotator])[label]) for item, annotator, label in rows(small))
    assert loss_of(bound, anatomy, small) == pytest.approx(by_hand, abs=1e-10)


@pytest.mark.parametrize("likelihood", ["per_annotation", "joint"])
@pytest.mark.parametrize("prepare", [built, shaken])
def test_without_common_noise_the_released_link_is_the_model_crowd_layer(prepare, likelihood, small):
    conal, of_conal = prepare(small, omega=0, **RELEASED | {"likelihood": likelihood})
    layer, of_layer = built(small, "crowd_layer", net="linear", start=START, likelihood=likelihood)
    layer.net.load_state_dict(conal.net.state_dict())
    if prepare is shaken:
        layer.matrix.data.copy_(conal.individual_weights)
    assert loss_of(layer, of_layer, small) == pytest.approx(loss_of(conal, of_conal, small), abs=1e-12)


# -------------------------------------------------------------------- the regulariser


@pytest.mark.parametrize("link", LINKS)
def test_the_regulariser_lowers_the_loss_where_matrices_differ_and_leaves_it_where_they_do_not(link, small):
    for prepare, lowest, highest in ((shaken, 0.1, np.inf), (built, 0.0, 1e-4)):
        plain, apart = (
            loss_of(*prepare(small, link=link, strength=0, apart=weight, likelihood="per_annotation"), small)
            for weight in (0.0, 0.1)
        )
        assert lowest <= plain - apart <= highest


@pytest.mark.parametrize("likelihood", ["joint", "per_annotation"])
@pytest.mark.parametrize("link", LINKS)
def test_its_gradient_is_finite_at_the_start_where_all_matrices_are_equal(link, likelihood, small):
    bound, anatomy = built(small, link=link, strength=0, apart=1.0, likelihood=likelihood)
    assert (bound.individual_weights == bound.common_weights).all()
    loss_tensor(bound, anatomy, small).backward()
    gradients = {name: one.grad for name, one in bound.named_parameters() if one.grad is not None}
    assert {"common_weights", "individual_weights"} <= set(gradients)
    assert all(torch.isfinite(one).all() for one in gradients.values())


def test_matrices_that_tell_nothing_give_the_bound_of_theorem_1(small):
    bound, anatomy = built(small, strength=0)
    with torch.no_grad():
        bound.common_weights.zero_(), bound.individual_weights.zero_()
    recorded = explained(bound, anatomy, small).recorded
    told = [recorded[name].numpy() for name in ("common", "individual", "omega")]
    found = metrics.minimax_bound(small, np.full((4, 3), 1 / 3), *told)
    assert found == pytest.approx((4 * np.log(3) - np.log(2)) / (16 * np.log(3)))


# -------------------------------------------------------------------- EM


@pytest.mark.parametrize("strength", [0, 1])
@pytest.mark.parametrize(
    ("omega", "with_features"),
    [("pair", True), *product(("annotator", "annotation", 0.3), (False, True))],
)
def test_exact_em_never_loses_log_posterior(omega, with_features, strength, crowd, bare):
    engine = EM(max_iter=40, tol=0, network_steps=5)
    fit = pyrocrowd.fit("conal", crowd if with_features else bare, engine, omega=omega, strength=strength)
    assert len(fit.losses) == 40 and fit.losses[-1] < fit.losses[0] - 5
    assert np.diff(fit.losses).max() <= 1e-8


def test_a_free_omega_per_annotation_fits_the_labels_better_and_is_saturated():
    crowd = simulate.conal(items=500, annotators=8, classes=3).crowd._with(features=None)
    person, free = (pyrocrowd.fit("conal", crowd, EM(max_iter=200), omega=one) for one in ("annotator", "annotation"))
    assert free.log_likelihood > person.log_likelihood + 300
    assert free.metrics()["accuracy"] < person.metrics()["accuracy"] + 0.01
    omega = free.noted["omega"]
    assert np.minimum(omega, 1 - omega).max() < 0.1


@pytest.fixture
def beliefs(small):
    """A posterior of truth and source at random: q_i[c] and q_i[c] t_irc; nobody believes in class 2 of item 3."""
    generator = np.random.default_rng(3)
    q = generator.dirichlet(np.ones(3), size=4)
    q[3] = [0.4, 0.6, 0.0]
    t = generator.random((small.n_annotations, 3))
    both = np.stack([(1 - t) * q[small.item], t * q[small.item]], -1)
    posterior = {"truth": torch.as_tensor(q), ("truth", "source"): torch.as_tensor(both)}
    return q, t, posterior


@pytest.mark.parametrize("strength", [0, 1.0])
def test_the_matrices_of_the_m_step_are_the_closed_forms_of_the_spec(strength, small, beliefs):
    q, t, posterior = beliefs
    bound, _ = built(small, strength=strength)
    values = {name: numbers(value) for name, value in bound.m_step(small, posterior).items()}
    common = numbers(imagined_labels(3, strength)).copy()
    individual = np.stack([common] * 3)
    for row, (item, annotator, label) in enumerate(rows(small)):
        for c in range(3):
            common[c, label] += q[item, c] * t[row, c]
            individual[annotator, c, label] += q[item, c] * (1 - t[row, c])
    for name, counts in (("common", common), ("individual", individual)):
        found = values[name] if strength else softmax(values[f"{name}_weights"], -1)
        assert np.allclose(found, counts / counts.sum(-1, keepdims=True), atol=1e-12)


def test_prevalence_and_omega_of_the_m_step_are_the_closed_forms_of_the_spec(small, beliefs):
    q, t, posterior = beliefs
    small = small._with(features=None)
    sources = [sum(q[item, c] * t[row, c] for c in range(3)) for row, (item, _, _) in enumerate(rows(small))]
    per_person, _ = built(small)
    values = per_person.m_step(small, posterior)
    # the flat priors are worth one item of each class, and one label of each source
    assert np.allclose(values["prevalence"], [(1 + q[:, c].sum()) / (3 + 4) for c in range(3)])
    for annotator in range(3):
        own = [source for source, row in zip(sources, rows(small), strict=True) if row[1] == annotator]
        assert float(values["share"][annotator]) == pytest.approx((1 + sum(own)) / (2 + len(own)))
    free, _ = built(small, omega="annotation")
    assert np.allclose(expit(numbers(free.m_step(small, posterior)["omega_logit"])), sources)


def test_rows_without_any_count_are_uniform_where_there_is_no_prior(small):
    q = torch.tensor([[1.0, 0.0, 0.0]] * 4)
    both = torch.stack([q[small.item], torch.zeros(small.n_annotations, 3)], -1)
    bound, _ = built(small, strength=0)
    values = bound.m_step(small, {"truth": q, ("truth", "source"): both})
    assert np.allclose(softmax(numbers(values["common_weights"]), -1), 1 / 3)
    individual = softmax(numbers(values["individual_weights"]), -1)
    assert np.allclose(individual[:, 1:], 1 / 3)
    for annotator in range(3):
        given = small.label[small.annotator == annotator]
        assert np.allclose(individual[annotator, 0], np.bincount(given, minlength=3) / len(given))


@pytest.mark.parametrize("likelihood", ["joint", "per_annotation"])
def test_the_posterior_of_the_source_is_the_one_of_the_spec(likelihood, small):
    bound, anatomy = shaken(small, net="linear", strength=0, likelihood=likelihood)
    p, (common, individual) = class_chances(bound, small), [softmax(one, -1) for one in weights_of(bound)]
    omega = [omega_by_hand(bound, small, item, annotator) for item, annotator, _ in rows(small)]
    a, t = np.zeros((small.n_annotations, 3)), np.zeros((small.n_annotations, 3))
    for row, (_, annotator, label) in enumerate(rows(small)):
        for c in range(3):
            a[row, c] = omega[row] * common[c, label] + (1 - omega[row]) * individual[annotator, c, label]
            t[row, c] = omega[row] * common[c, label] / a[row, c]
    by_hand = []
    for row, (item, _, _) in enumerate(rows(small)):
        witnesses = [row] if likelihood == "per_annotation" else np.flatnonzero(small.item == item)
        q = p[item] * np.prod(a[witnesses], 0)
        by_hand.append((q / q.sum()) @ t[row])
    found = explained(bound, anatomy, small).posterior["source"].numpy()
    assert np.allclose(found[:, 1], by_hand, atol=1e-12) and np.allclose(found.sum(1), 1)


def test_em_with_networks_keeps_the_best_of_its_starts(crowd):
    engine = EM(restarts=4, max_iter=15, network_steps=3)
    fit = pyrocrowd.fit("conal", crowd, engine, strength=0, seed=1)
    alone = pyrocrowd.fit("conal", crowd, EM(max_iter=15, network_steps=3), strength=0, seed=1)
    assert 0 < fit.notes["start"] < 3  # so that neither the first nor the last state is the right one
    assert fit.losses[-1] < alone.losses[-1]
    assert fit.log_likelihood == pytest.approx(-fit.losses[-1], abs=1e-8)  # no priors: the weights kept are those


# -------------------------------------------------------------------- engines


def test_the_default_engine_is_em_for_labels_alone_and_map_with_features(crowd, bare):
    entry = zoo.find("conal")
    assert pick_engine(None, entry, bare).name == "em" and pick_engine(None, entry, crowd).name == "map"


QUICK = {
    "em": EM(max_iter=5),
    "map": MAP(steps=10),
    "svi": SVI(steps=10, draws=30),
    "nuts": NUTS(draws=5, warmup=5, chains=1),
}


@pytest.mark.parametrize("engine", QUICK)
def test_every_engine_fits_labels_alone(engine, bare):
    fit = pyrocrowd.fit("conal", bare, QUICK[engine])
    assert {"common", "individual", "prevalence", "share", "confusion"} <= set(fit.draws)
    assert np.isfinite(fit.losses).all() and np.isfinite(fit.log_likelihood)
    assert fit.marginals["source"].shape == (bare.n_annotations, 2)
    assert np.allclose(fit.noted["omega"], fit.draws["share"].mean((0, 1))[bare.annotator], atol=1e-6)
    with pytest.raises(PyrocrowdError, match="no classifier"):
        fit.predict_proba(np.zeros((2, 5)))


@pytest.mark.parametrize("engine", ["em", "map", "svi"])
def test_engines_that_train_networks_label_new_items(engine, made):
    fit = pyrocrowd.fit("conal", made.crowd, QUICK[engine])
    new = fit.predict_proba(made.test.features)
    assert new.shape == (made.test.n_items, 3) and np.allclose(new.sum(1), 1) and np.ptp(new, axis=0).min() > 0.01
    assert ((fit.noted["omega"] >= LEAST - 1e-6) & (fit.noted["omega"] <= MOST + 1e-6)).all()


def test_nuts_refuses_networks_in_one_sentence(crowd):
    with pytest.raises(PyrocrowdError, match="NUTS would leave them untrained"):
        pyrocrowd.fit("conal", crowd, NUTS(draws=2, warmup=2))


def test_svi_draws_of_the_common_matrix_vary_and_are_row_stochastic(crowd):
    common = pyrocrowd.fit("conal", crowd, SVI(steps=50, draws=40)).draws["common"]
    assert common.shape == (1, 40, 3, 3) and (common > 0).all() and np.allclose(common.sum(-1), 1)
    assert common.std((0, 1)).min() > 1e-4


@pytest.mark.parametrize(
    ("engine", "options"),
    [*product(["em", "map", "svi"], [{}]), *product(["map", "svi"], [RELEASED])],
)
def test_a_saved_fit_comes_back_with_its_sources_matrices_and_predictions(engine, options, made, tmp_path):
    fit = pyrocrowd.fit("conal", made.crowd, QUICK[engine], **options)
    again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert np.array_equal(again.predict_proba(made.test.features), fit.predict_proba(made.test.features))
    assert np.array_equal(again.noted["omega"], fit.noted["omega"])
    assert list(again.marginals) == list(fit.marginals) == ([] if options else ["source"])
    assert all(np.array_equal(again.marginals[site], one) for site, one in fit.marginals.items())
    assert np.array_equal(again.confusion().values, fit.confusion().values)
    assert np.array_equal(again.draws["common"], fit.draws["common"])


def test_an_optimiser_that_restarts_every_epoch_steps_by_the_sign_of_the_gradient(crowd):
    common = {}
    for restart in (1, None):
        engine = MAP(epochs=5, learning_rate=0.01, schedule="constant", clip=1e9, restart_epochs=restart)
        fit = pyrocrowd.fit("conal", crowd, engine, strength=0)
        moved = numbers(fit.weights["module.common_weights"]) - START * np.eye(3)
        common[restart] = moved / 0.01
    whole = common[1].round()
    assert np.abs(common[1] - whole).max() < 1e-3 and (whole % 2 == 1).all()  # five steps of one, up or down
    assert np.abs(common[None] - common[None].round()).max() > 1e-2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"omega": 2}, "omega must be auto, pair, annotator, annotation or a chance in [0, 1], not 2."),
        ({"omega": None}, "omega must be auto, pair, annotator, annotation or a chance in [0, 1], not None."),
        ({"omega": "pairs"}, "omega must be one of pair, annotator, annotation, not 'pairs'. Did you mean 'pair'?"),
        ({"omega": "pair"}, "omega=pair needs item features and the crowd has none: use annotator."),
        ({"link": "linear"}, "link must be one of mixture, softmax_linear, not 'linear'. Did you mean"),
        ({"likelihood": "both"}, "likelihood must be one of joint, per_annotation, not 'both'."),
        ({"normalise": "item"}, "normalise must be one of both, annotator, none, not 'item'."),
        ({"strength": -1}, "strength must be a number of at least 0, not -1."),
        ({"apart": -1e-5}, "apart must be a number of at least 0, not -1e-05."),
        ({"temperature": "warm"}, "temperature must be a number or learned, not 'warm'."),
        ({"bias": None}, "bias must be a number or learned, not None."),
    ],
)
def test_an_impossible_option_is_refused_in_one_sentence(options, sentence, crowd, bare):
    with pytest.raises(PyrocrowdError) as refusal:
        pyrocrowd.fit("conal", bare if options.get("omega") == "pair" else crowd, **options)
    assert str(refusal.value).startswith(sentence) and "\n" not in str(refusal.value)


# -------------------------------------------------------------------- recovery


def test_the_common_matrix_and_the_sources_of_a_simulated_crowd_are_recovered():
    made = simulate.conal(items=3000, strength=0.7, individual_strength=0.3, proportion=0.5)
    fit = pyrocrowd.fit("conal", made.crowd, MAP(epochs=20, batch_size=256, learning_rate=0.05))
    sources = metrics.source_recovery(fit.marginals["source"][:, 1], made.hidden["source"])
    assert metrics.js_divergence(fit.draws["common"][0, 0], made.hidden["common"]) < 0.05
    assert sources["auc"] > 0.75
    voted = metrics.accuracy(made.crowd.truth, metrics.soft_vote(made.crowd))
    assert metrics.accuracy(made.test.truth, fit.predict_proba(made.test.features)) > voted + 0.1


def test_a_crowd_without_common_noise_is_labelled_as_well_with_as_without_the_common_matrix():
    made = simulate.conal(items=3000, strength=0.7, individual_strength=0.3, proportion=0)
    engine = MAP(epochs=20, batch_size=256)
    scores = {}
    for omega in ("pair", 0.0):
        fit = pyrocrowd.fit("conal", made.crowd, engine, omega=omega)
        scores[omega] = metrics.accuracy(made.test.truth, fit.predict_proba(made.test.features))
    assert min(scores.values()) > 0.9 and abs(scores["pair"] - scores[0.0]) <= 0.015


def test_a_pair_that_nobody_labelled_gets_the_usual_omega_even_where_there_are_as_many_pairs_as_labels():
    crowd = Crowd.from_matrix([[0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]).keep(np.arange(12)[::-1])
    fit = pyrocrowd.fit("conal", crowd, EM(max_iter=3), omega="annotation")
    pair = fit.pair_confusion()  # four items, three annotators: twelve pairs, twelve labels
    usual = expit(logit(np.clip(fit.noted["omega"], 1e-12, 1 - 1e-12)).mean())
    assert pair.size == 12 * 4
    common, individual = fit.draws["common"][0, 0], fit.draws["individual"][0, 0]
    expected = usual * common + (1 - usual) * individual
    assert np.allclose(pair.values, expected[None], atol=1e-3)


def test_a_loaded_run_keeps_what_is_known_of_the_annotators(made, tmp_path):
    features = np.random.default_rng(0).normal(size=(made.crowd.n_annotators, 3)).astype(np.float32)
    fit = pyrocrowd.fit("conal", made.crowd._with(annotator_features=features), MAP(steps=5))
    again = pyrocrowd.load(fit.save(tmp_path / "run"))
    assert np.array_equal(again.crowd.annotator_features, features)
    assert np.allclose(again.predict_proba(made.test.features), fit.predict_proba(made.test.features))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "selection", "least"),
    [
        ("LabelMe", "best epoch on the clean validation set", 86.5),
        ("Music", "best epoch on the test set (optimistic)", 73.0),
    ],
)
def test_the_released_recipe_gives_the_accuracy_of_table_1_over_five_seeds(dataset, selection, least, tmp_path):
    torch.set_default_dtype(torch.float32)
    results = reproduce("conal-table1", seeds=5, only="CoNAL", dataset=dataset, runs=tmp_path)
    if results.reasons:
        pytest.skip("; ".join(map(str, results.reasons)))
    (row,) = [row for row in results.rows if row["selection"] == selection]
    assert row["seeds"] == 5 and row["mean"] >= least
