import pytest

from tests.priced import BATCH, SIDE, Priced, PricedLoss, params
from tfpipe import registry
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.network import Network
from tfpipe.optimizers import SGD, Adafactor, Adam, Learner, RMSProp


class Unsplit(Priced):
  SPLITS_BACKWARD = False


class Outer(Priced):
  def __init__(self, params):
    super().__init__(params)
    self.CreateChild("inner", Unsplit.Params())


def layers(*classes, **fields):
  made = [
    cls.Params().Set(name=f"layer_{i}", **fields) for i, cls in enumerate(classes)
  ]
  return [*made, PricedLoss.Params().Set(name="loss", **fields)]


def test_of_layers_that_differ_in_their_names_only_one_is_asked(monkeypatch):
  asked = []
  ask = Priced.FPropMeta.__func__
  monkeypatch.setattr(
    Priced,
    "FPropMeta",
    classmethod(lambda cls, p, *x: asked.append(p.name) or ask(cls, p, *x)),
  )
  network = Network(params(layers=layers(*[Priced] * 4, weights=3, flops=7)))
  costs = network.costs(3)
  # The first has another input, of pictures.
  assert asked == ["layer_0", "layer_1"]
  assert [cost.name for cost in costs] == list(network.names)
  assert [cost.flops for cost in costs] == [7 * BATCH // 3] * 5
  assert network.costs(3) is costs
  assert network.costs(4) is not costs


@pytest.mark.parametrize(
  ("field", "values"), [("width", (1, 2)), ("inside", (1, True)), ("flops", (0, 4))]
)
def test_layers_that_differ_in_more_are_asked_each(field, values):
  different = [
    Priced.Params().Set(name=f"layer_{i}", **{field: value})
    for i, value in enumerate(values)
  ]
  network = Network(params(layers=[*different, PricedLoss.Params().Set(name="loss")]))
  assert len(set(network._keys[:2])) == 2


@pytest.mark.parametrize(
  ("optimizer", "slots"),
  [
    (SGD.Params(), 0),
    (RMSProp.Params(), 1),
    (RMSProp.Params().Set(momentum=0.9), 2),
    (Adam.Params(), 2),
    (Adafactor.Params(), 1),  # the weight is a vector
  ],
)
def test_states_are_those_of_the_learner(optimizer, slots):
  p = params(layers=layers(Priced, weights=10))
  p.task.learner = Learner.Params().Set(
    optimizer=optimizer, ema_decay=0.9, accumulate_steps=2
  )
  first, last = Network(p).states
  for state in (first, last):
    assert (state.weights, state.gradients, state.slots) == (40, 40, 40 * slots)
    assert (state.averages, state.sums) == (40, 40)
  assert first.fields == {"image"}
  assert last.fields == {"label"}


def test_frozen_weights_have_no_gradient_and_moving_statistics_no_slot():
  frozen = Priced.Params().Set(name="a", weights=10, trainable=False)
  norm = BatchNorm.Params().Set(name="b", dim=4)
  network = Network(params(layers=[frozen, norm, *layers()]))
  first, second, _ = network.states
  assert (first.weights, first.gradients, first.slots) == (40, 0, 0)
  # gamma, beta and two moving statistics; Adam's two slots.
  assert (second.weights, second.gradients, second.slots) == (64, 32, 64)


def test_a_tied_weight_belongs_to_its_owner_and_has_a_sum_at_each_use():
  tied = Priced.Params().Set(name="b", weights=10, tied_to="a/w")
  owner = Priced.Params().Set(name="a", weights=10)
  first, second, _ = Network(params(layers=[owner, tied, *layers()])).states
  assert (first.weights, first.gradients, first.tied) == (40, 40, {})
  assert (second.weights, second.slots, second.gradients) == (0, 0, 40)
  assert second.tied == {"a": 40}


def test_layers_with_a_backward_in_one_piece_are_named_wherever_it_is():
  network = Network(params(layers=layers(Priced, Unsplit, Outer)))
  assert network.unsplit == ("layer_1", "layer_2")


def test_micro_batches_divide_the_batches_of_training_and_evaluation():
  p = params(1, batch=12)
  assert Network(p).micro_batches == (1, 2, 3, 4, 6, 12)
  p.eval_input = SyntheticImageInput.EvalParams().Set(batch_size=20, image_size=SIDE)
  network = Network(p)
  assert network.micro_batches == (1, 2, 4)
  # 3 is nearest to 12's 3 and 20's 2 and 4; 6 to 12's 6, which is not 20's.
  for number, owner, rows, best in ((6, "eval_input", 20, 4), (5, "input", 12, 4)):
    message = f"={number} does not divide {owner}.batch_size={rows}; .* does is {best}$"
    with pytest.raises(ValueError, match=message):
      network.costs(number)


def test_the_fields_of_a_micro_batch_have_their_bytes():
  network = Network(params(1, batch=12))
  assert network.batch_size() == 12
  found = network.field_bytes(3)
  assert found["image"] == 4 * SIDE * SIDE * 4
  assert found["label"] == 4 * 4


def test_the_paper_s_largest_network_has_its_weights_and_slots():
  p = registry.Get("lm.paper.Transformer1663")().Model()
  network = Network(p)
  weights = 4 * 83_876_910_336
  assert sum(state.weights for state in network.states) == weights
  assert sum(state.slots for state in network.states) == 2 * weights
  # 512 micro-batches on 128 devices: 4 for each.
  assert network.batch_size() == 512
