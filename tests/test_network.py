import re

import pytest

from tests.priced import BATCH, SIDE, Priced, PricedLoss, PricedTask, params
from tfpipe import network as network_lib
from tfpipe import registry
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.nested_map import NestedMap
from tfpipe.network import Network
from tfpipe.optimizers import SGD, Adafactor, Adam, Learner, RMSProp
from tfpipe.params import Params


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
  "values", [({}, Params()), ({1: 2}, {True: 2}), ({}, NestedMap()), ((), [])]
)
def test_layers_with_values_of_two_types_that_look_alike_are_told_apart(values):
  first, second = (Priced.Params().Set(width=value) for value in values)
  assert network_lib._key(first) != network_lib._key(second)


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_borders_and_activations_in_16_bits_have_half_of_the_bytes(dtype):
  def network(dtype):
    p = registry.Get("lm.shakespeare.Char")().Model()
    return Network(p.Set(**{"pipeline.compute_dtype": dtype}))

  half, full = network(dtype), network("float32")
  pairs = list(zip(half.costs(8), full.costs(8), strict=True))
  for small, large in pairs[:-1]:
    assert small.out_shapes.dtype == dtype
    assert 2 * small.border_bytes == large.border_bytes
  # Metrics are single numbers of float32.
  assert pairs[-1][0].out_shapes == pairs[-1][1].out_shapes
  # All that a block keeps, but for masks of a byte and two float32 a row.
  rows = 4 * 128
  masks, numbers = 2 * rows * 128, 2 * 4 * rows
  small, large = pairs[1]
  rest = masks + numbers
  assert 2 * (small.activation_bytes - rest) == large.activation_bytes - rest
  assert half.states == full.states
  assert half.field_bytes(8) == full.field_bytes(8)


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


@pytest.mark.parametrize(
  ("tied_to", "weights", "message"),
  [
    ("aa/w", 10, r"^b/w is tied to 'aa/w', which no layer has; did you mean 'a/w'\?$"),
    ("a/v", 10, r"^b/w is tied to 'a/v', which no layer has; did you mean 'a/w'\?$"),
    ("b/w", 10, r"^b/w is tied to 'b/w', which no layer has; did you mean 'a/w'\?$"),
    ("w", 10, r"^b/w is tied to 'w', which no layer has"),
    ("a/w", 9, r"^b/w of shape \(9,\) is tied to a/w of shape \(10,\)$"),
  ],
)
def test_a_tied_weight_that_is_not_there_or_does_not_fit_is_refused(
  tied_to, weights, message
):
  tied = Priced.Params().Set(name="b", weights=weights, tied_to=tied_to)
  owner = Priced.Params().Set(name="a", weights=10)
  with pytest.raises(ValueError, match=message):
    Network(params(layers=[owner, tied, *layers()]))


def raises(error):
  def raising(*_):
    raise error

  return raising


@pytest.mark.parametrize(
  ("ask", "message"),
  [
    (
      lambda cls, p, x: x,
      r"^layer 'b': Mine\.FPropMeta returned ArraySpec\(.*: must b",
    ),
    (
      lambda cls, p, x: None,
      r"^layer 'b': Mine\.FPropMeta returned None: must be a Lay",
    ),
    (
      lambda cls, p, x: cls.Cost(p, x.shap),
      r"^layer 'b', Mine\.FPropMeta, test_networ",
    ),
    (
      lambda cls, p, x: cls.Cost(p, x.shape),
      r"py:\d+: TypeError: out_shapes\[0\] is a",
    ),
    (
      raises(KeyError("z")),
      r"^layer 'b', Mine\.FPropMeta, test_network\.py:\d+: KeyErro",
    ),
    (raises(ValueError("bound 3 passed")), r"^layer 'b': bound 3 passed$"),
    (raises(ValueError("b.x=3: too wide")), r"^b\.x=3: too wide$"),
  ],
)
def test_a_layer_that_does_not_give_its_cost_is_named(ask, message):
  mine = type("Mine", (Priced,), {"FPropMeta": classmethod(ask)})
  entry = Priced.Params().Set(name="a")
  network = Network(params(layers=[entry, mine.Params().Set(name="b"), *layers()]))
  with pytest.raises(ValueError, match=message):
    network.costs(1)


def test_a_mistake_in_the_layers_of_a_task_is_named_with_its_line():
  message = r"^Mine\.Layers\(\), test_network\.py:\d+: KeyError: 'z'$"
  with pytest.raises(ValueError, match=message):
    Network(params(1, task=task_class(Layers=raises(KeyError("z")))))


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


def task_class(**attributes):
  return type("Mine", (PricedTask,), attributes)


_FIELDS = "must be a tuple of names of fields of the batch"


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ((), rf"^Mine\.INPUT_FIELDS=\(\): {_FIELDS}, at least one$"),
    (
      "image",
      rf"^Mine\.INPUT_FIELDS='image': {_FIELDS}, .*; did you mean \('image',\)\?$",
    ),
    (None, rf"^Mine\.INPUT_FIELDS=None: {_FIELDS}, at least one$"),
    (("image", 3), rf"^Mine\.INPUT_FIELDS=\('image', 3\): {_FIELDS}, at least one$"),
    ({"image": 1}, rf"^Mine\.INPUT_FIELDS=.*: {_FIELDS}, at least one$"),
  ],
)
def test_a_task_s_fields_are_a_tuple_of_at_least_one_name(fields, message):
  with pytest.raises(ValueError, match=message):
    Network(params(1, task=task_class(INPUT_FIELDS=fields)))


@pytest.mark.parametrize("fields", ["label", None, (None,)])
def test_a_layer_s_side_inputs_are_a_tuple_of_names(fields):
  side = type("Side", (Priced,), {"SIDE_INPUTS": fields})
  message = rf"^Side\.SIDE_INPUTS={re.escape(repr(fields))}: {_FIELDS}(;|$)"
  with pytest.raises(ValueError, match=message):
    Network(params(layers=layers(Priced, side)))


_LAYER = "must be the Params of a layer$"


@pytest.mark.parametrize(
  ("made", "message"),
  [
    ([], r" returned \[\]: must be a list of the Params of at least one layer$"),
    (None, r" returned None: must be a list of the Params of at least one layer$"),
    (
      Priced.Params(),
      r" returned a InstantiableParams: must be a list of the Params of at least one ",
    ),
    ([None], rf"\[0\] is a NoneType: {_LAYER}"),
    ([Priced.Params().Set(name="a"), Params()], rf"\[1\] is a Params: {_LAYER}"),
    ([SGD.Params()], rf"\[0\] is the Params of <class .*SGD'>: {_LAYER}"),
    ([Priced.Params()], r"\[0\]\.name='': must be a text, and not empty$"),
    ([Priced.Params().Set(name=5)], r"\[0\]\.name=5: must be a text, and not empty$"),
  ],
)
def test_a_task_s_layers_are_a_list_of_params_with_names(made, message):
  with pytest.raises(ValueError, match=rf"^Mine\.Layers\(\){message}"):
    Network(params(1, task=task_class(Layers=lambda self: made)))


class Sized(PricedTask):
  """Has of the sizes of an input what its layers may not mean by it."""

  @classmethod
  def Params(cls):
    p = super().Params()
    for name in ("channels", "sequence_length", "image_size"):
      p.Define(name, SIDE if name == "image_size" else 1, "A size.")
    return p


def test_sizes_that_fit_the_layers_are_not_compared():
  p = params(1, task=Sized)
  p.task.channels = 64
  assert len(Network(p).costs(1)) == 2


def test_a_size_that_the_layers_refuse_has_the_name_that_the_user_knows():
  def network(**sizes):
    norm = BatchNorm.Params().Set(name="norm", dim=3)
    p = params(task=Sized, layers=[norm, *layers()])
    p.task.Set(**sizes)
    return Network(p)

  with pytest.raises(ValueError, match=r"^task\.channels=3: must be 1, as input\.chan"):
    network(channels=3).costs(1)
  with pytest.raises(ValueError, match=rf"^task\.image_size=4: must be {SIDE}, as inp"):
    network(image_size=4).costs(1)
  # No size of the task's is to blame.
  with pytest.raises(ValueError, match=r"^norm: got 1 channels, expected 3"):
    network().costs(1)


def test_the_paper_s_largest_network_has_its_weights_and_slots():
  p = registry.Get("lm.paper.Transformer1663")().Model()
  network = Network(p)
  weights = 4 * 83_876_910_336
  assert sum(state.weights for state in network.states) == weights
  assert sum(state.slots for state in network.states) == 2 * weights
  # 512 micro-batches on 128 devices: 4 for each.
  assert network.batch_size() == 512


@pytest.mark.parametrize("owner", ["input", "eval_input"])
@pytest.mark.parametrize(
  ("field", "value", "kind"),
  [
    ("batch_size", 0, ValueError),
    ("seed", "x", TypeError),
    ("image_size", 0, ValueError),
  ],
)
def test_what_is_wrong_with_an_input_is_said_with_its_name(owner, field, value, kind):
  params = registry.Get("tests.program.tiny.Image")().Model()
  params.Get(owner).Set(**{field: value})
  message = rf"^{owner}: SyntheticImageInput\.{field} = {value!r}: it must be "
  with pytest.raises(kind, match=message):
    Network(params).costs(params.pipeline.num_micro_batches)
