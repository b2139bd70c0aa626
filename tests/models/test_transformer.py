import math
import subprocess
import sys

import numpy as np
import pytest

from models.transformer.block import TransformerBlock
from models.transformer.language_model import TransformerLm
from tests.layers.run_layer import call, gradients, start_values
from tfpipe import registry
from tfpipe.cost import ArraySpec
from tfpipe.nested_map import NestedMap

# A block of width 8 in float32 against float64.
ATOL = 2e-5


def _lm(**fields):
  sizes = {
    "vocab_size": 11,
    "sequence_length": 6,
    "num_layers": 3,
    "model_dim": 8,
    "ff_dim": 12,
    "num_heads": 2,
  }
  return TransformerLm.Params().Set(**sizes).Set(**fields)


def _costs(params, batch=2, length=6):
  ids = ArraySpec((batch, length), "int32")
  side = NestedMap(labels=ids, weights=ArraySpec((batch, length)))
  costs, x = [], ids
  for layer in params.Instantiate().Layers():
    extra = (side,) if layer.cls.SIDE_INPUTS else ()
    costs.append(layer.cls.FPropMeta(layer, x, *extra))
    x = costs[-1].out_shapes
  return costs


# Table 1 of the GPipe paper: 282.2M, 785.8M, 5.3B, 21.0B and 83.9B.
TABLE_1 = [
  (3, 282_178_816),
  (13, 785_761_536),
  (103, 5_318_006_016),
  (415, 21_029_786_880),
  (1663, 83_876_910_336),
]


@pytest.mark.parametrize(("num_layers", "parameters"), TABLE_1)
def test_parameters_are_those_of_the_paper(num_layers, parameters):
  params = _lm(
    vocab_size=32_000,
    sequence_length=1024,
    num_layers=num_layers,
    model_dim=2048,
    ff_dim=8192,
    num_heads=32,
  )
  costs = _costs(params, batch=32, length=1024)
  assert len(costs) == num_layers + 2
  assert sum(cost.param_count for cost in costs) == parameters
  assert sum(cost.param_bytes for cost in costs) == 4 * parameters


def _weights(params):
  """Lists name and shape of every weight, in order."""
  return [
    (f"{layer.name}/{path}", weight.shape)
    for layer in params.Instantiate().Layers()
    for path, weight in layer.Instantiate().weights().items()
    if not weight.tied_to
  ]


# Checkpoints, start values and seeds go by these names.
BLOCK = {
  "attention_norm/scale": (2048,),
  "attention_norm/bias": (2048,),
  "attention/qkv/w": (2048, 3 * 2048),
  "attention/qkv/b": (3 * 2048,),
  "attention/output/w": (2048, 2048),
  "attention/output/b": (2048,),
  "ff_norm/scale": (2048,),
  "ff_norm/bias": (2048,),
  "ff/hidden/w": (2048, 8192),
  "ff/hidden/b": (8192,),
  "ff/output/w": (8192, 2048),
  "ff/output/b": (2048,),
}


def test_names_and_shapes_of_the_papers_weights_are_pinned():
  params = registry.Get("lm.paper.Transformer3")().Task()
  blocks = [
    (f"layer_{i}/{name}", shape) for i in range(3) for name, shape in BLOCK.items()
  ]
  expected = [
    ("embedding/w", (32_000, 2048)),
    *blocks,
    ("softmax/w", (2048, 32_000)),
    ("softmax/b", (32_000,)),
  ]
  assert _weights(params) == expected
  # The paper's first count, by its formula and by the table above.
  d, f, v = 2048, 8192, 32_000
  formula = 3 * (4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d) + 2 * v * d + v
  assert sum(math.prod(shape) for _, shape in expected) == formula == 282_178_816


def test_names_and_shapes_of_the_options_weights_are_pinned():
  fields = {"tie_embeddings": True, "final_norm": True, "positions": "learned"}
  weights = _weights(_lm(num_layers=1, **fields))
  assert [weight for weight in weights if not weight[0].startswith("layer_0/")] == [
    ("embedding/w", (11, 8)),
    ("embedding/positions", (6, 8)),
    ("final_norm/scale", (8,)),
    ("final_norm/bias", (8,)),
    ("softmax/b", (11,)),
  ]


@pytest.mark.parametrize(
  ("fields", "more"),
  [
    ({"tie_embeddings": True}, -11 * 8),
    ({"final_norm": True}, 2 * 8),
    ({"positions": "learned"}, 6 * 8),
  ],
)
def test_options_change_the_count_by_what_they_add(fields, more):
  plain = sum(cost.param_count for cost in _costs(_lm()))
  assert sum(cost.param_count for cost in _costs(_lm(**fields))) == plain + more


def test_costs_need_no_tensorflow():
  program = (
    "import sys\n"
    "from tests.models import test_transformer\n"
    "print(len(test_transformer._costs(test_transformer._lm())))\n"
    "assert 'tensorflow' not in sys.modules\n"
  )
  run = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  assert run.stdout == "5\n"


def test_layers_are_named_in_order():
  names = [p.name for p in _lm(final_norm=True).Instantiate().Layers()]
  assert names == [
    "embedding",
    "layer_0",
    "layer_1",
    "layer_2",
    "final_norm",
    "softmax",
  ]


def test_blocks_differ_in_nothing_but_their_names():
  params = _lm(depth_scaled_init=True, dropout_keep_prob=0.9)
  blocks = params.Instantiate().Layers()[1:-1]
  assert len({p.Copy().Set(name="").ToText() for p in blocks}) == 1


def test_equal_cells_share_one_traced_function(tf):
  from tfpipe.pipeline.cell import make_cells

  layers = [p.Instantiate() for p in _lm(num_layers=4).Instantiate().Layers()]
  ids = tf.TensorSpec([2, 6], tf.int32)
  batch = {"labels": ids, "weights": tf.TensorSpec([2, 6])}
  ranges = [(0, 2), (2, 3), (3, 4), (4, 6)]
  cells = make_cells(layers, ranges, ids, batch)
  assert cells[1].function is cells[2].function
  assert cells[1].weight_names() != cells[2].weight_names()
  assert [cell.side for cell in cells] == [(), (), (), ("labels", "weights")]


def _block(**fields):
  return TransformerBlock.Params().Set(dim=8, ff_dim=12, num_heads=2).Set(**fields)


def _norm(x, values, name):
  centered = x - x.mean(-1, keepdims=True)
  y = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
  return y * values[f"{name}/scale"] + values[f"{name}/bias"]


def _attention(x, values):
  """Head by head, position by position, for one example [time, 8]."""
  qkv = x @ values["attention/qkv/w"] + values["attention/qkv/b"]
  y = np.zeros_like(x)
  for head in range(2):
    q, k, v = (qkv[:, 8 * i + 4 * head :][:, :4] for i in range(3))
    for t in range(len(x)):
      p = np.exp(k[: t + 1] @ q[t] / 2.0)
      y[t, 4 * head : 4 * head + 4] = p @ v[: t + 1] / p.sum()
  return y @ values["attention/output/w"] + values["attention/output/b"]


def _reference_block(x, values):
  values = {name: value.astype(np.float64) for name, value in values.items()}
  x = x + _attention(_norm(x, values, "attention_norm"), values)
  hidden = _norm(x, values, "ff_norm") @ values["ff/hidden/w"] + values["ff/hidden/b"]
  return x + np.maximum(hidden, 0.0) @ values["ff/output/w"] + values["ff/output/b"]


def test_a_block_is_pre_norm_attention_and_feed_forward(tf):
  values = start_values(_block().Instantiate())
  x = np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32)
  expected = [_reference_block(row, values) for row in x]
  np.testing.assert_allclose(call(tf, _block(), values, x), expected, atol=ATOL)


def test_the_gradient_of_a_block_is_the_slope_of_the_reference(tf):
  values = start_values(_block().Instantiate())
  rng = np.random.default_rng(1)
  x = rng.normal(size=(1, 5, 8)).astype(np.float32)
  dy, along = rng.normal(size=(2, 5, 8))
  run = gradients(tf, _block(), values, [x], dy[None].astype(np.float32))

  def loss(step):
    return (_reference_block(x[0] + step * along, values) * dy).sum()

  slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
  assert (run.inputs[0][0] * along).numpy().sum() == pytest.approx(slope, rel=1e-4)


def test_the_two_dropouts_of_a_block_draw_different_masks(tf):
  params = _block(dropout_keep_prob=0.5)
  assert len(params.Instantiate().seeds()) == 2
  # With zeros but for the last biases, the output is what dropout leaves of these.
  values = {k: np.zeros_like(v) for k, v in start_values(params.Instantiate()).items()}
  values["attention/output/b"] = np.full(8, 1.0, np.float32)
  values["ff/output/b"] = np.full(8, 10.0, np.float32)
  y = call(tf, params, values, np.zeros((4, 5, 8), np.float32)).numpy()
  assert set(np.unique(y)) == {0.0, 2.0, 20.0, 22.0}
  y = call(tf, params, values, np.zeros((4, 5, 8), np.float32), do_eval=True)
  np.testing.assert_array_equal(y, 11.0)


def test_depth_scaled_branches_start_smaller_by_the_root_of_the_depth(tf):
  def start(**fields):
    block = _lm(num_layers=16, **fields).Instantiate().Layers()[1]
    return start_values(block.Instantiate())

  plain, scaled = start(), start(depth_scaled_init=True)
  smaller = {"ff/hidden/w", "ff/output/w", "attention/output/w"}
  for name, value in plain.items():
    factor = 0.25 if name in smaller else 1.0
    np.testing.assert_allclose(scaled[name], factor * value, rtol=1e-5, err_msg=name)


def _sum_loss(tf, layers, weights, batch):
  """Runs a whole network and gives the sum of its losses."""
  x = batch.ids
  for params in layers:
    prefix = f"{params.name}/"
    values = {
      path: weights[weight.tied_to or prefix + path]
      for path, weight in params.Instantiate().weights().items()
    }
    x = call(tf, params, values, x, *([batch] if params.cls.SIDE_INPUTS else []))
  return x.loss[0]


def _network(tf, **fields):
  layers = _lm(num_layers=1, **fields).Instantiate().Layers()
  weights = {
    f"{p.name}/{path}": tf.constant(value)
    for p in layers
    for path, value in start_values(p.Instantiate()).items()
  }
  rng = np.random.default_rng(3)
  ids, labels = rng.integers(11, size=(2, 2, 6)).astype(np.int32)
  weight = rng.random((2, 6)).astype(np.float32)
  return layers, weights, NestedMap(ids=ids, labels=labels, weights=weight)


def _gradients(tf, layers, weights, batch):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = _sum_loss(tf, layers, weights, batch)
  found = tape.gradient(loss, weights)
  return loss, {
    name: tf.convert_to_tensor(g) for name, g in found.items() if g is not None
  }


def test_the_gradient_of_a_tied_table_is_the_sum_of_both_uses(tf):
  layers, weights, batch = _network(tf)
  tied, _, _ = _network(tf, tie_embeddings=True)
  weights["softmax/w"] = tf.transpose(weights["embedding/w"])
  loss, separate = _gradients(tf, layers, weights, batch)
  tied_loss, found = _gradients(tf, tied, weights, batch)
  assert float(loss) == pytest.approx(float(tied_loss), rel=1e-6)
  assert "softmax/w" not in found
  expected = separate["embedding/w"] + tf.transpose(separate["softmax/w"])
  np.testing.assert_allclose(found["embedding/w"], expected, atol=ATOL)


def test_a_token_has_no_influence_on_losses_before_it(tf):
  layers, weights, batch = _network(tf, final_norm=True)
  batch.weights = np.float32([[1, 1, 1, 0, 0, 0]] * 2)
  before = float(_sum_loss(tf, layers, weights, batch))
  batch.ids[:, 3:] = (batch.ids[:, 3:] + 1) % 11
  assert float(_sum_loss(tf, layers, weights, batch)) == before


def test_it_learns_a_repeated_sequence(tf):
  layers, weights, batch = _network(tf)
  batch.labels = batch.ids.copy()
  losses = []
  for _ in range(60):
    loss, found = _gradients(tf, layers, weights, batch)
    losses.append(float(loss))
    weights = {name: w - 0.05 * found[name] for name, w in weights.items()}
  assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("num_heads", 3, "num_heads=3 does not divide model_dim=8; 2 does"),
    ("num_layers", 0, "TransformerLm.num_layers = 0: it must be an integer"),
    ("sequence_length", 0, "TransformerLm.sequence_length = 0"),
    ("tie_embeddings", "yes", "TransformerLm.tie_embeddings = 'yes'"),
  ],
)
def test_bad_params_are_refused(field, value, message):
  with pytest.raises((TypeError, ValueError), match=message):
    _lm(**{field: value}).Instantiate()


def test_rows_longer_than_the_sequence_length_are_refused():
  with pytest.raises(
    ValueError, match=r"embedding: max_length=6, but ids are \(2, 7\)"
  ):
    _costs(_lm(), length=7)
