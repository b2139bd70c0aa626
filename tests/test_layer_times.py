import dataclasses
import json

import pytest

from tfpipe import layer_times
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layer_times import Crowding, LayerTime, LayerTimes

TIMES = LayerTimes(
  "a device",
  4,
  (LayerTime("stem", 0.1, 0.0, 0.2, 0.5, 0.25), LayerTime("loss", 1, 2e-9, 0.0)),
  0.75,
  Crowding(1.5, 4.0, 1.25),
)


def cost(name, flops, matmul_flops=0, count=0, num_bytes=0):
  out = ArraySpec((1,))
  return LayerCost(name, flops, matmul_flops, count, num_bytes, 0, out)


def fields(**changes):
  times = {"forward": 1, "input_gradient": 2, "weight_gradient": 3, "update": 4}
  layer = {"name": "a", **times, "backward": None}
  return {"device": "d", "batch": 1, "layers": [layer], "end": 0, **changes}


def layer(**changes):
  return fields(layers=[{**fields()["layers"][0], **changes}])


def crowding(**changes):
  return fields(crowding={"few": 1, "many": 4, "factor": 1.5, **changes})


def test_what_is_written_is_read_again(tmp_path):
  path = tmp_path / "times.json"
  layer_times.write(path, TIMES)
  assert layer_times.read(path) == TIMES
  assert layer_times.read(str(path)) == TIMES
  written = json.loads(path.read_text())
  assert written["layers"][0] == {
    "name": "stem",
    "forward": 0.1,
    "input_gradient": 0.0,
    "weight_gradient": 0.2,
    "update": 0.5,
    "backward": 0.25,
  }
  assert written["layers"][1]["backward"] is None
  assert written["end"] == 0.75
  assert written["crowding"] == {"few": 1.5, "many": 4.0, "factor": 1.25}
  del written["crowding"]
  path.write_text(json.dumps(written))
  assert layer_times.read(path) == dataclasses.replace(TIMES, crowding=Crowding())


def test_more_micro_batches_in_flight_take_longer_on_a_line_between_two():
  crowding = Crowding(1.0, 5.0, 1.5)
  factors = [crowding.at(kept) for kept in (0, 1, 2, 3, 5, 9)]
  assert factors == [1.0, 1.0, 1.125, 1.25, 1.5, 1.5]
  assert Crowding(2.0, 2.0, 1.5).at(2) == 1.0
  assert Crowding().at(7) == 1.0


def test_both_gradients_take_as_long_as_each_unless_they_were_timed_at_once():
  assert [layer.both for layer in TIMES.layers] == [0.25, 2e-9]
  assert [layer.total for layer in TIMES.layers] == [0.1 + 0.25, 1 + 2e-9]


def test_every_product_has_two_gradients_and_nobody_needs_that_at_the_input():
  costs = [
    cost("embedding", 10, count=3, num_bytes=12),
    cost("dense", 100, matmul_flops=80, count=7, num_bytes=28),
    # A product of two activations: both gradients are at its inputs.
    cost("attention", 60, matmul_flops=50),
    cost("pooling", 30),
    # A frozen matrix has no gradient.
    cost("frozen", 40, matmul_flops=40, num_bytes=28),
  ]
  assert layer_times.from_costs(costs).layers == (
    LayerTime("embedding", 10, 0, 10),
    LayerTime("dense", 100, 100, 100),
    LayerTime("attention", 60, 110, 0),
    LayerTime("pooling", 30, 30, 0),
    LayerTime("frozen", 40, 40, 0),
  )
  halves = layer_times.from_costs(costs, flops_per_sec=2).layers
  assert halves[1] == LayerTime("dense", 50, 50, 50)
  assert halves[1].total == 150


def test_micro_batches_of_other_rows_take_as_many_times_as_long_but_not_updates():
  assert TIMES.for_batch(4) == TIMES.layers
  assert TIMES.for_batch(1)[0] == LayerTime("stem", 0.025, 0.0, 0.05, 0.5, 0.0625)
  assert TIMES.for_batch(8)[1] == LayerTime("loss", 2, 4e-9, 0.0)


@pytest.mark.parametrize(
  ("names", "message"),
  [
    (("stem", "los"), "layer 'loss' is none of the network's 2; did you mean 'los'"),
    (("stem",), "layer 'loss' is none of the network's 1"),
    (("stem", "body", "loss"), "the network's layer 'body' has no times"),
    (("loss", "stem"), "layer 0 is 'stem', but 'loss' in the network"),
  ],
)
def test_times_of_another_network_are_refused(names, message):
  TIMES.check_names(("stem", "loss"))
  with pytest.raises(ValueError, match=message):
    TIMES.check_names(names)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ([], r"the file is \[\]: expected an object"),
    ({}, "the file: device, batch, layers, end missing"),
    (
      fields(layer=[]),
      "the file: field 'layer' is not one of .*; did you mean 'layers",
    ),
    (fields(device=3), "device is 3: expected a text"),
    (fields(batch=0), "batch is 0: expected a whole number >= 1"),
    (fields(batch=1.0), "batch is 1.0: expected a whole number >= 1"),
    (fields(batch=True), "batch is True: expected a whole number >= 1"),
    (fields(layers={}), "layers is {}: expected a list"),
    (fields(layers=[]), "layers is empty: expected the times of at least one layer"),
    (fields(layers=[3]), r"layers\[0\] is 3: expected an object"),
    (
      fields(layers=[{}]),
      r"layers\[0\]: name, forward, input_gradient, weight_gr.* mis",
    ),
    (fields(layers=fields()["layers"] * 2), "layer 'a' is there twice"),
    (layer(name=1), r"layers\[0\]: name is 1: expected a text"),
    (layer(forward=-1), "layer 'a': forward is -1: expected a finite number >= 0"),
    (layer(forward="1"), "layer 'a': forward is '1': expected a finite number >= 0"),
    (layer(forward=None), "layer 'a': forward is None: expected a finite number >= 0"),
    (layer(forward=True), "layer 'a': forward is True: expected a finite number >= 0"),
    (
      layer(input_gradient=float("nan")),
      "layer 'a': input_gradient is nan: expected a",
    ),
    (layer(weight_gradient=float("inf")), "layer 'a': weight_gradient is inf: expect"),
    (layer(backward=-1), "layer 'a': backward is -1: expected a finite number >= 0"),
    (layer(back=1), r"layers\[0\]: field 'back' is not one of name, forward"),
    (fields(end=-1), "end is -1: expected a finite number >= 0"),
    (fields(end=None), "end is None: expected a finite number >= 0"),
    (fields(crowding=2), "crowding is 2: expected an object"),
    (fields(crowding={}), "crowding: few, many, factor missing"),
    (crowding(few=-1), "crowding: few is -1: expected a finite number >= 0"),
    (crowding(many="4"), "crowding: many is '4': expected a finite number >= 0"),
    (crowding(few=5), "crowding: few is 5, above many, 4"),
    (crowding(factor=0), "crowding: factor is 0: expected a number above 0"),
    (crowding(more=1), "crowding: field 'more' is not one of few, many, factor"),
  ],
)
def test_another_form_is_refused_with_the_place(tmp_path, content, message):
  path = tmp_path / "times.json"
  path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=f"times.json: {message}"):
    layer_times.read(path)


def test_a_broken_or_missing_file_is_refused(tmp_path):
  path = tmp_path / "times.json"
  with pytest.raises(
    LookupError, match=r"layer times '.*times.json': there is no such"
  ):
    layer_times.read(path)
  for content, message in (
    (b"\xff\xfe", "no text in UTF-8"),
    (b'{"batch": 1, "batch": 1}', "field 'batch' is given twice"),
    (b"[" * 100_000, "brackets are nested too deeply"),
    (json.dumps(fields(batch=10**400)).encode(), "a number of 401 digits"),
    (json.dumps(layer(forward=10**400)).encode(), "a number of 401 digits"),
  ):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"times.json: .*{message}"):
      layer_times.read(path)
  path.write_text('{\n"device": ')
  with pytest.raises(ValueError, match=r"times.json: line 2: Expecting value"):
    layer_times.read(path)


def test_numbers_beyond_all_floats_are_no_times():
  with pytest.raises(ValueError, match=r"forward is 1000.*: expected a finite number"):
    LayerTime("a", 10**400, 0, 0)
  with pytest.raises(ValueError, match=r"forward is 1e\+308: .*, at most 1e\+100"):
    LayerTime("a", 1e308, 0, 0)  # two would be more than any float
  with pytest.raises(ValueError, match=r"batch is 1000.*: expected a whole number"):
    LayerTimes("d", 10**400, (LayerTime("a", 1, 1, 1),))
