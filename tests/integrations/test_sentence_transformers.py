"""sentence-transformers, the released one: same value, FlatNCE's gradient, diagnostics logged."""

import copy
import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

reason = "sentence-transformers is not installed: pip install 'flatnce[sentence-transformers]'"
pytest.importorskip("sentence_transformers", reason=reason)
pytest.importorskip("datasets", reason="its trainer needs datasets: pip install datasets")

from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import cos_sim, dot_score, euclidean_sim

from flatnce import EssController, LearnedTemperature
from flatnce.integrations.sentence_transformers import (
    CachedFlatNCERankingLoss,
    FlatNCERankingLoss,
    FlatNCESymmetricRankingLoss,
    FlatNCETrainer,
)
from trainer_runs import LOGGED, read_board

BOTH = ("query_to_doc", "doc_to_query")
ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def columns(count: int = 2, rows: int = 5, spread: float = 1.0) -> list[Tensor]:
    """A batch's embeddings: positives near their anchors, negatives anywhere."""
    anchors = torch.randn(rows, 6, dtype=torch.float64)
    positives = anchors + spread * torch.randn_like(anchors)
    more = [torch.randn_like(anchors) for _ in range(count - 2)]
    return [z.requires_grad_() for z in (anchors, positives.detach(), *more)]


def gradients(loss: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, embeddings))


def value(kind: type, embeddings: list[Tensor], **options: object) -> Tensor:
    """The loss of embeddings under a class of losses with these options."""
    return kind(nn.Identity(), **options).compute_loss_from_embeddings(embeddings, None)


HOST = losses.MultipleNegativesRankingLoss
SYMMETRIC = {"directions": BOTH, "partition_mode": "per_direction"}
DIRECTIONS = [
    {},
    SYMMETRIC,
    {"directions": ("query_to_doc", "query_to_query")},
    {"directions": ("query_to_doc", "doc_to_doc")},
]


@pytest.fixture(scope="module")
def model(example):
    torch.manual_seed(0)  # before the seed of the first test, whichever that is
    return example.small_model(["a cat sleeps at home", "a dog runs outside"])


@pytest.mark.parametrize("rows", [5, 1])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "options", [*DIRECTIONS, {"scale": 5.0}, {"scale": 1.0, "similarity_fct": dot_score}]
)
def test_as_infonce_it_is_the_librarys_own_loss_in_value_and_gradient(options, count, rows):
    embeddings = columns(count, rows)
    found = value(FlatNCERankingLoss, embeddings, **options, objective="infonce")
    expected = value(HOST, embeddings, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, embeddings), gradients(expected, embeddings))


def test_a_joint_pool_with_doc_to_query_counts_the_positive_once_where_the_library_does_twice():
    embeddings = columns(spread=0.01)
    options = {"scale": 50.0, "directions": BOTH}
    assert value(HOST, embeddings, **options).item() > math.log(2)
    ours = value(FlatNCERankingLoss, embeddings, **options, objective="infonce")
    assert 0 <= ours.item() < 0.1


def gaps(embeddings: list[Tensor], scale: float, directions: tuple[str, ...]) -> Tensor:
    """Row by row, from the definition: log-sum-exp of all negatives, less the positive."""
    queries, *documents = embeddings
    found = []
    for i in range(len(queries)):
        negatives = [
            cos_sim(queries[i], column[j])
            for place, column in enumerate(documents)
            for j in range(len(queries))
            if place > 0 or j != i
        ]
        others = [j for j in range(len(queries)) if j != i]
        own = documents[0][i]
        if "query_to_query" in directions:
            negatives += [cos_sim(queries[i], queries[j]) for j in others]
        if "doc_to_query" in directions:
            negatives += [cos_sim(own, queries[j]) for j in others]
        if "doc_to_doc" in directions:
            negatives += [cos_sim(own, column[j]) for column in documents for j in others]
        pool = scale * torch.cat([s.reshape(1) for s in negatives])
        found.append(pool.logsumexp(0) - scale * cos_sim(queries[i], own).squeeze())
    return torch.stack(found)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("directions", [("query_to_doc",), ALL], ids=["one", "all"])
def test_the_gradient_is_flatnces_and_the_value_infonces(directions, count):
    embeddings = columns(count, rows=4)
    scale, learned = torch.tensor(20.0).double().requires_grad_(), LearnedTemperature(0.05)
    learned.double().log_beta.data.fill_(math.log(20))  # it was made in float32
    found = value(FlatNCERankingLoss, embeddings, directions=directions, temperature=learned)
    rows = gaps(embeddings, scale, directions)
    infonce = nn.functional.softplus(rows, threshold=50).mean()
    torch.testing.assert_close(found, infonce)
    *slopes, to_log_scale = gradients(found, [*embeddings, learned.log_beta])
    (to_scale,) = torch.autograd.grad(infonce, scale, retain_graph=True)
    torch.testing.assert_close(to_log_scale, 20 * to_scale)
    torch.testing.assert_close(slopes, gradients(rows.mean(), embeddings))
    both = value(FlatNCESymmetricRankingLoss, embeddings)
    torch.testing.assert_close(both, value(HOST, embeddings, **SYMMETRIC))


PLAIN_AND_CACHED = [(FlatNCERankingLoss, {}), (CachedFlatNCERankingLoss, {"mini_batch_size": 2})]
TEXTS = [["a cat sleeps", "a dog runs", "cat"], ["the cat", "dogs run outside", "at home"]]


@pytest.mark.parametrize("options", [{}, SYMMETRIC])
def test_gradient_caching_gives_the_same_gradient(model, options):
    # In float64, because sums over other batches round differently, and without dropout.
    model = copy.deepcopy(model).double().eval()
    found = []
    for kind, caching in PLAIN_AND_CACHED:
        model.zero_grad()
        loss = kind(model, **options, **caching)
        total = loss([model.preprocess(column) for column in TEXTS], None)
        total.backward()
        slopes = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append((total.detach(), slopes))
    torch.testing.assert_close(found[1], found[0])
    assert found[0][0].dtype == torch.float64


@pytest.mark.parametrize("matryoshka", [False, True])
def test_caching_refuses_a_learned_temperature_and_takes_others(model, matryoshka):
    columns = [model.preprocess(column) for column in TEXTS]
    for temperature in (LearnedTemperature(0.05), EssController(0.3)):
        loss = CachedFlatNCERankingLoss(model, temperature=temperature, mini_batch_size=2)
        whole = losses.MatryoshkaLoss(model, loss, [64, 16]) if matryoshka else loss
        if isinstance(temperature, LearnedTemperature):
            with pytest.raises(ValueError, match=r"a learned temperature gets no.*FlatNCERank"):
                whole(columns, None)
        else:
            whole(columns, None).backward()


def test_the_example_trains_and_its_diagnostics_reach_history_tensorboard_and_card(trained):
    logged = [line for line in trained.state.log_history if "loss" in line]
    assert logged[-1]["loss"] < logged[0]["loss"]
    assert min(line["loss"] for line in logged) >= 0
    assert logged[-1]["flatnce/verdict"] == trained.diagnostics.verdicts()["objective"].kind
    events = read_board(Path(trained.args.output_dir))
    for key in LOGGED:
        shown = [event.value for event in events.Scalars(f"train/flatnce/{key}")]
        assert shown == pytest.approx([line[f"flatnce/{key}"] for line in logged])
    trained.create_model_card()
    card = (Path(trained.args.output_dir) / "README.md").read_text(encoding="utf-8")
    for words in ("FlatNCERankingLoss", '"objective": "flatnce"', "2107.01152"):
        assert words in card


@pytest.mark.parametrize("kind", [FlatNCERankingLoss, CachedFlatNCERankingLoss])
def test_a_temperature_is_among_the_settings_and_a_number_is_a_scale(model, kind):
    loss = kind(model, temperature=0.1)
    assert loss.get_config_dict()["scale"] == pytest.approx(10.0)
    assert loss.temperature == pytest.approx(0.1)
    controlled = kind(model, temperature=EssController(0.3))
    settings = json.loads(json.dumps(controlled.get_config_dict()))
    assert settings["scale"] is None and "target=0.3" in settings["temperature"]
    assert ("2101.06983" in loss.citation) is (kind is CachedFlatNCERankingLoss)
    for other in (0.2, LearnedTemperature(0.1)):  # torch would register the module
        with pytest.raises(ValueError, match=r"^temperature=.* cannot be set; set scale or obj"):
            loss.temperature = other
    loss.objective.temperature = EssController(0.3)
    assert "target=0.3" in loss.get_config_dict()["temperature"]
    loss.objective.temperature = 0.02
    assert loss.get_config_dict()["scale"] == pytest.approx(50.0)
    loss.scale = 40.0  # assigned later still
    assert loss.get_config_dict()["scale"] == 40.0 and loss.temperature == pytest.approx(0.025)
    embeddings = columns()
    loss = FlatNCERankingLoss(model)
    loss.scale = 5.0  # assigned later, which the library allows
    found = loss.compute_loss_from_embeddings(embeddings)
    torch.testing.assert_close(found, value(FlatNCERankingLoss, embeddings, scale=5.0))


def test_half_precision_gives_a_float32_loss_and_gradients_of_its_own_kind():
    embeddings = [z.detach().bfloat16().requires_grad_() for z in columns()]
    ours = value(FlatNCERankingLoss, embeddings)
    assert ours.dtype == torch.float32
    assert {slope.dtype for slope in gradients(ours, embeddings)} == {torch.bfloat16}


ASSIGNED = {
    "scale": 5.0,
    "similarity_fct": dot_score,
    "directions": BOTH,
    "partition_mode": "per_direction",
}


@pytest.mark.parametrize("kind", [FlatNCERankingLoss, CachedFlatNCERankingLoss])
def test_options_assigned_later_take_effect_and_are_those_of_the_card(kind):
    embeddings, body = columns(), nn.ModuleList([nn.Identity()])
    loss = kind(body)

    def found(loss):
        if kind is FlatNCERankingLoss:
            return loss.compute_loss_from_embeddings(embeddings)
        return loss.calculate_loss([[column] for column in embeddings])

    before = found(loss)
    for done, name in enumerate(ASSIGNED, start=1):
        setattr(loss, name, ASSIGNED[name])
        given = dict(list(ASSIGNED.items())[:done])
        expected = kind(body, **given)
        after = found(loss)
        torch.testing.assert_close(after, found(expected))
        assert not torch.isclose(after, before), name
        assert loss.get_config_dict() == expected.get_config_dict()
        before = after
    with_list = kind(body, **ASSIGNED)
    with_list.directions = ["query_to_doc"]
    found(with_list)
    with_list.directions.append("doc_to_query")
    torch.testing.assert_close(found(with_list), before)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("similarity_fct", euclidean_sim, "similarity_fct='euclidean_sim'.*cos_sim"),
        ("directions", ("query_to_doc", "sideways"), "Invalid directions.*sideways"),
        ("partition_mode", "apart", "partition_mode must be.*apart"),
        ("scale", 0.0, r"^scale=0.0 must be a positive finite number"),
        ("scale", -2.0, r"^scale=-2.0 must be a positive finite number"),
        ("hardness_mode", "hard_negatives", "hardness_mode='hard_negatives'.*leave it out"),
    ],
)
def test_an_assigned_option_is_checked_at_the_next_call(name, given, message):
    loss = FlatNCERankingLoss(nn.Identity())
    setattr(loss, name, given)
    for _ in range(2):  # not only the first time
        with pytest.raises(ValueError, match=message):
            loss.compute_loss_from_embeddings(columns())


def test_only_training_moves_a_controlled_temperature():
    body = nn.Identity()
    loss = FlatNCERankingLoss(body, temperature=EssController(0.5))
    start = float(loss.temperature)
    body.eval()
    loss.compute_loss_from_embeddings(columns())
    assert float(loss.temperature) == start
    body.train()
    loss.compute_loss_from_embeddings(columns())
    assert float(loss.temperature) != start


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardness_mode": "hard_negatives"}, "hardness_mode='hard_negatives'.*leave it out"),
        ({"similarity_fct": euclidean_sim}, "similarity_fct='euclidean_sim'.*cos_sim"),
        ({"objective": "dcl"}, "objective='dcl'.*choose one of flatnce, infonce"),
        ({"scale": 5.0, "temperature": 0.1}, r"scale=5.0 and temperature=0.1.*pass one"),
        ({"temperature": math.inf}, "temperature=inf must be a positive finite number"),
    ],
    ids=["hardness", "similarity", "objective", "both", "infinite"],
)
def test_what_it_cannot_do_is_refused_with_a_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        FlatNCERankingLoss(nn.Identity(), **options)


def test_a_single_column_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"1 column.*pairs"):
        value(FlatNCERankingLoss, columns()[:1])


def test_the_losses_take_the_options_of_the_library_in_its_order(model):
    loss = FlatNCERankingLoss(model, 5.0, dot_score, True, BOTH, "per_direction")
    assert (loss.scale, loss.similarity_fct) == (5.0, dot_score)
    assert (loss.gather_across_devices, loss.directions) == (True, BOTH)
    objective = loss.objective
    assert objective.gather and not objective.layout.joint and not objective.normalize
    accepted = inspect.signature(losses.CachedMultipleNegativesRankingLoss).parameters
    if "mini_batch_num_tokens" not in accepted:
        pytest.skip("this release of sentence-transformers does not know mini_batch_num_tokens")
    assert CachedFlatNCERankingLoss(model, 20.0, cos_sim, 32, 7).mini_batch_num_tokens == 7


# --- A last batch of one row ---------------------------------------------------------------------


def test_one_row_teaches_a_learned_temperature_what_the_library_would():
    embeddings, temperature = columns(4, rows=1), LearnedTemperature(0.5).double()
    ours = FlatNCESymmetricRankingLoss(nn.Identity(), temperature=temperature)
    ours.compute_loss_from_embeddings(embeddings).backward()
    log_scale = torch.tensor(2.0, dtype=torch.float64).log().requires_grad_()
    theirs = HOST(nn.Identity(), **SYMMETRIC)
    theirs.scale = log_scale.exp()
    theirs.compute_loss_from_embeddings(embeddings, None).backward()
    assert abs(log_scale.grad) > 1e-3
    torch.testing.assert_close(temperature.log_beta.grad, log_scale.grad, rtol=1e-5, atol=1e-5)


def test_one_row_with_negatives_leaves_its_diagnostics_and_one_without_those_before():
    loss = FlatNCESymmetricRankingLoss(nn.Identity())
    total = loss.compute_loss_from_embeddings(columns(4, rows=1))
    kept = loss.last
    assert kept.loss.item() == total.item() > 0 and kept.objective == "FlatNCE"
    assert kept.contrast.count.tolist() == [2.0]  # the query's row; the document's has none
    assert loss.compute_loss_from_embeddings(columns(rows=1)).item() == 0
    assert loss.last is kept


@pytest.mark.parametrize("kind", [FlatNCERankingLoss, CachedFlatNCERankingLoss])
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_the_trainer_accepts_a_last_batch_of_one(example, model, tmp_path, kind, stage):
    options = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    options |= {"report_to": "none", "save_strategy": "no", "use_cpu": True, "num_train_epochs": 1}
    arguments = example.SentenceTransformerTrainingArguments(str(tmp_path), **options)
    data = example.paraphrases().select(range(5))
    run = FlatNCETrainer(model, arguments, data, eval_dataset=data, loss=kind(model))
    found = getattr(run, stage)()
    if stage == "train":
        assert run.state.global_step == 2
    else:
        assert found["eval_loss"] > 0
