"""Times of layers: what is timed, how often, and what is refused; no time itself."""

import os
import re

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from tests.program.training import IMAGE, TEXT
from tfpipe import layer_times, trainer
from tfpipe import plan as plan_lib
from tfpipe.layer_times import Crowding, LayerTime, LayerTimes
from tfpipe.network import Network
from tfpipe.program import profile_layers
from tfpipe.program.profile_layers import Profile
from tfpipe.schedule.validate import validate
from tools import profile_layers as tool

IMAGE_LAYERS = ("block_0", "block_1", "block_2", "block_3", "loss")


def run(*arguments: str) -> None:
  """Does what `python -m tools.profile_layers` does with these arguments."""
  with flagsaver.flagsaver():
    try:
      rest = flags.FLAGS(["profile_layers", *arguments])
    except flags.Error as error:  # absl's app.run ends so
      raise SystemExit(str(error)) from error
    tool.main(rest)


def refusal(*arguments: str) -> str:
  with pytest.raises(SystemExit) as ended:
    run(*arguments)
  assert isinstance(ended.value.code, str)
  return ended.value.code


@pytest.fixture
def short(monkeypatch):
  monkeypatch.setattr(profile_layers, "ROUNDS", 1)
  monkeypatch.setattr(profile_layers, "STEPS", 2)


@pytest.mark.parametrize("splits", [False, True])
def test_layers_are_stages_of_a_valid_schedule_one_micro_batch_after_the_other(splits):
  made = profile_layers.schedule(2, 2, splits=splits)
  validate(made)
  back = ["B1", "B0", "W1", "W0"] if splits else ["BW1", "BW0"]
  names = [f"{action.kind}{action.stage}" for action in made.actions[0]]
  assert names == 2 * ["F0", "F1", *back] + ["U0", "U1"]
  assert [action.micro_batch for action in made.actions[0][:-2]] == [
    m for m in (0, 1) for _ in range(2 + len(back))
  ]


def _times(schedule, secs):
  """Lets actions run one second after the other; micro-batch m takes m + 1 times."""
  now, rows = 5.0, []
  for action in schedule.actions[0]:
    if action.kind == "U":
      continue
    taken = secs[action.kind, action.stage] * (action.micro_batch + 1)
    rows.append((now, now + taken))
    now += taken + 1.0
  return np.array(rows)


def test_within_a_step_the_mean_counts_and_of_steps_the_median():
  made = profile_layers.schedule(1, 3, splits=True)
  secs = {("F", 0): 1.0, ("B", 0): 2.0, ("W", 0): 4.0}
  times = _times(made, secs)
  last = np.array([times.max()] * 2)
  actions = [action for action in made.actions[0] if action.kind != "U"]
  found = profile_layers.medians(
    actions,
    [
      (times, last + np.array([2.0, 1.0])),
      (times * 1.5, last * 1.5 + np.array([3.0, 1.5])),
      (times * 100, last * 1e9),
    ],
  )
  # Of 1, 2, 3 times the mean is 2; the step that was 100 times slow does not count.
  assert found.secs == pytest.approx({key: 3.0 * own for key, own in secs.items()})
  assert found.updates == pytest.approx((3.0, 1.5))


@pytest.fixture
def counted(monkeypatch):
  """Gives times that tell of their kind; three pipelines take 1, 2 and 3 times as long.

  The update takes 8 seconds, of which 7 depend on the weights of the device.
  """
  seen = []

  def measure(subjects, source, batch, limit):
    first = not seen
    seen.extend(subjects)
    found = []
    for number, copies in enumerate(subjects, 1):
      stages = len({action.stage for action in copies[0].actions})
      factor = 1 if first else number * len(copies[0].shares()) / stages
      base = {"F": 1.0, "B": 2.0, "W": 3.0, "BW": 4.0}
      secs = {
        (action.kind, action.stage): factor * base[action.kind]
        for action in copies[0].actions
      }
      shares = [1.0] if first else copies[0].stage_shares()
      updates = tuple(1.0 + 7.0 * share for share in shares)
      found.append(profile_layers.Measured(secs, updates))
    return found

  monkeypatch.setattr(profile_layers, "measure", measure)
  return seen


def test_each_stage_scales_its_own_layers():
  layers = {
    (kind, i): secs
    for kind in ("F", "B", "W", "BW")
    for i, secs in enumerate([1.0, 3.0, 2.0])
  }
  layers["W", 2] = 0  # of a layer without weights
  stages = {("F", 0): 8.0, ("F", 1): 3.0, ("B", 0): 2.0, ("B", 1): 1.0}
  stages |= {("W", 0): 4.0, ("W", 1): 0.5, ("BW", 0): 12.0, ("BW", 1): 10.0}
  found = profile_layers.scale(layers, stages, ((0, 2), (2, 3)))
  assert [found["F", i] for i in range(3)] == [2.0, 6.0, 3.0]
  assert [found["B", i] for i in range(3)] == [0.5, 1.5, 1.0]
  assert [found["W", i] for i in range(3)] == [1.0, 3.0, 0.0]
  assert [found["BW", i] for i in range(3)] == [3.0, 9.0, 10.0]


def test_layers_are_scaled_to_add_up_to_the_whole_and_the_update_is_shared(tf, counted):
  devices = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
  params = trainer.model_params(IMAGE, ["task.num_blocks=3"])
  found = profile_layers.profile(params, devices)
  network = Network(params)
  layers = found.times.layers
  assert [layer.name for layer in layers] == list(network.names)
  assert found.alone == (4.0, 8.0, 12.0, 16.0)
  # Of the first and the third, which keep few: F is in both, B and W in the first.
  assert found.whole == (2 * 4.0, 8.0, 12.0, 3 * 16.0)
  for layer in layers:
    assert (layer.forward, layer.input_gradient) == (2.0, 2.0)
    assert (layer.weight_gradient, layer.backward) == (3.0, 12.0)
  # 1F1B keeps 2 on the first device and 1 on the last, GPipe 2 on both: its F and BW
  # take 2 times what they take alone, those of 1F1B 3 times.
  crowding = found.times.crowding
  assert (crowding.few, crowding.many) == (1.5, 2.0)
  assert crowding.factor == pytest.approx(2 / 3)
  assert found.times.batch == 4
  counts = [cost.param_count for cost in network.costs(2)]
  for layer, count in zip(layers, counts, strict=True):
    assert layer.update == pytest.approx(7.0 * count / sum(counts))
  assert found.times.end == pytest.approx(1.0)
  # Copies on every device, then one cut over both.
  assert [len(copies) for copies in counted] == [2, 2, 1, 1, 1]
  assert found.times.device.startswith("CPU:0, ")


def test_of_one_micro_batch_nothing_tells_what_more_in_flight_would_change(tf, counted):
  devices = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
  params = trainer.model_params(IMAGE, ["pipeline.num_micro_batches=1"])
  found = profile_layers.profile(params, devices)
  # GPipe and 1F1B are one order, of which one took 1.5 times as long as the other.
  assert found.times.crowding == Crowding(1.0, 1.0, 1.0)
  assert "in flight" not in tool.check(found)


@pytest.mark.parametrize(
  ("updates", "update", "end"),
  [
    # 2 seconds are saved by half of the weights: all of them take 4.
    ([(1.0, 5.0), (0.5, 3.0), (0.5, 3.0)], 4.0, 1.0),
    # Of 3 quarters: 1 second saved by a quarter.
    ([(1.0, 6.0), (0.75, 5.0)], 4.0, 2.0),
    # Off the line by as much as is above it.
    ([(1.0, 6.0), (1.0, 4.0), (0.5, 3.5), (0.5, 2.5)], 4.0, 1.0),
    # More devices are no slower.
    ([(1.0, 3.0), (0.5, 5.0)], 0.0, 4.0),
    # Nothing takes less than no time: the best line from there, (9 + 1) / (1 + 0.25).
    ([(1.0, 9.0), (0.5, 2.0)], 8.0, 0.0),
    # On one device nothing tells what else there is.
    ([(1.0, 2.0), (1.0, 4.0)], 3.0, 0.0),
  ],
)
def test_the_update_is_what_fewer_weights_save(updates, update, end):
  found = [profile_layers.Measured({}, (secs,)) for _, secs in updates]
  shares = [[share] for share, _ in updates]
  assert profile_layers.update_and_end(shares, found) == pytest.approx((update, end))


def test_tied_weights_dropout_and_side_inputs_are_profiled_on_two_devices(tf, short):
  devices = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
  params = trainer.model_params(TEXT, [])
  found = profile_layers.profile(params, devices)
  assert [layer.name for layer in found.times.layers] == list(Network(params).names)
  assert all(layer.forward > 0 for layer in found.times.layers)


def _made_up() -> Profile:
  return Profile(
    times=LayerTimes(
      "CPU:0",
      4,
      (
        LayerTime("a", 1.0, 0.0, 1.0, 4.0),
        LayerTime("b", 2.0, 3.0, 1.0, backward=4.0),
      ),
      0.25,
      Crowding(1.5, 4.0, 1.25),
    ),
    alone=(2.0, 3.0, 1.0, 4.0),
    whole=(3.0, 3.0, 2.0, 4.0),
  )


def test_the_table_has_shares_beside_those_by_flops():
  costs = Network(trainer.model_params(IMAGE, [])).costs(2)[:2]
  rows = tool.table(_made_up(), costs).splitlines()
  by_flops = layer_times.from_costs(costs).layers
  share = by_flops[0].total / (by_flops[0].total + by_flops[1].total)
  border = f"{costs[0].border_bytes} B"
  assert re.split(r"\s{2,}", rows[1]) == [
    *("a", "1 s", "0 s", "1 s", "1 s", "4 s", "25.0%", f"{share:.1%}", border)
  ]
  assert re.split(r"\s{2,}", rows[3]) == ["all", "3 s", "3 s", "2 s", "5 s", "4 s"]


def test_the_check_compares_the_layers_with_one_stage_and_names_the_end():
  rows = tool.check(_made_up()).splitlines()
  assert re.split(r"\s{2,}", rows[1]) == ["forward", "2 s", "3 s", "1.500"]
  assert rows[-2:] == [
    "end of a step besides the update: 250 ms",
    "with 4 micro-batches in flight on a device in place of 1.5: 1.250 times as long",
  ]


@pytest.mark.parametrize(
  ("arguments", "count"),
  [((), 1), (("--threads=1",), 3), (("--threads=2",), 2), (("--threads=9",), 1)],
)
def test_as_many_copies_run_as_there_are_partitions_and_room(
  monkeypatch, arguments, count
):
  asked = []
  monkeypatch.setattr(tool.os, "sched_getaffinity", lambda _: set(range(4)))
  monkeypatch.setattr(tool.placement, "set_intra_op_threads", lambda threads: None)
  resolve = lambda spec, number: asked.append((spec, number)) or ("x",) * number  # noqa: E731
  monkeypatch.setattr(tool.placement, "resolve", resolve)
  with flagsaver.flagsaver():
    command = ["x", f"--model={IMAGE}", "--device=cpu", "--num_partitions=3"]
    flags.FLAGS([*command, *arguments])
    tool._devices(tool._params())
  assert asked == [("cpu", count)]


def test_the_command_writes_times_that_the_plan_takes(tf, short, tmp_path, capsys):
  path = tmp_path / "times.json"
  size = ("--set=task.dim=512", "--set=task.keep_prob=1.0")
  run(f"--model={IMAGE}", *size, "--device=CPU:0", f"--output={path}")
  times = layer_times.read(path)
  assert tuple(layer.name for layer in times.layers) == IMAGE_LAYERS
  assert times.batch == 4
  assert times.device.startswith("CPU:0, ")
  assert all(layer.total > 0 for layer in times.layers)
  shown = capsys.readouterr().out
  assert all(name in shown for name in IMAGE_LAYERS)
  assert f"wrote {path}" in shown
  params = trainer.model_params(IMAGE, ["task.dim=512", f"pipeline.layer_times={path}"])
  planned = plan_lib.make(params)
  assert planned.in_seconds
  total = sum(layer.total for layer in times.layers)
  spent = planned.times.forward, planned.times.backward
  assert sum(map(sum, spent)) == pytest.approx(total)


OK = (f"--model={IMAGE}", "--output=times.json")


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--output=x.json",), r"--model is missing; it names an experiment$"),
    ((f"--model={IMAGE}x", "--output=x.json"), r"tests\.program\.tiny\.Image"),
    ((f"--model={IMAGE}",), r"--output is missing; it names the file to write$"),
    ((f"--model={IMAGE}", "--output=."), r"--output=\.: is a folder, not a file$"),
    (
      (f"--model={IMAGE}", "--output=no/x.json"),
      r"--output=no/x\.json: there is no folder .*no$",
    ),
    (
      (*OK, "--threads=-1"),
      r"pipeline\.intra_op_threads=-1: must be a whole number, at least 0$",
    ),
    ((*OK, "--threads=two"), r"flag --threads=two: invalid literal .*'two'$"),
    (
      (*OK, "--device=gpux"),
      r"--device=gpux: .*'gpux' is not a device name such as 'GPU:0', nor one of auto, "
      r"cpu, gpu; did you mean 'gpu'\?$",
    ),
    ((*OK, "--device=CPU:0,CPU:1"), r"--device=CPU:0,CPU:1: .* names 2 devices"),
    (
      (*OK, "--num_micro_batches=0"),
      r"pipeline\.num_micro_batches=0: must be a whole number, at least 1$",
    ),
    (
      (*OK, "--num_micro_batches=3"),
      r"num_micro_batches=3 does not divide input\.batch_size=8; .* does is 2$",
    ),
    ((*OK, "--set=input.batch_size=-1"), r"batch_size.*-1.* at least 1"),
    (
      (*OK, "--set=pipeline.num_micro_batches=4", "--num_micro_batches=2"),
      r"pipeline\.num_micro_batches is set twice: to 4 and to 2$",
    ),
    (
      (*OK, "--logdir=x"),
      r"--logdir has no effect here; flags are --device, --model, --num_micro_batches, "
      r"--num_partitions, --output, --set, --threads$",
    ),
    ((*OK, "--schedule=gpipe"), r"--schedule has no effect here"),
    (
      (*OK, "--num_partitions=0"),
      r"pipeline\.num_partitions=0: must be a whole number, at least 1$",
    ),
    ((*OK, "times.json"), r"unexpected arguments: times\.json$"),
    ((*OK, "--otput=x"), r"Unknown command line flag 'otput'"),
  ],
)
def test_what_is_bad_is_refused_by_name_before_tensorflow_starts(
  tmp_path, monkeypatch, arguments, message
):
  def refuse(*_):
    raise AssertionError("TensorFlow was started")

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(tool, "_devices", refuse)
  found = refusal(*arguments)
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []


def test_start_up_notes_are_not_shown(monkeypatch, tmp_path, capfd):
  def start(_):
    os.write(2, b"I0000 00:00:1.0 7 port.cc:153] oneDNN operations are on.\nslow\n")
    raise ValueError("no device")

  monkeypatch.setattr(tool, "_devices", start)
  assert refusal(*OK, f"--output={tmp_path}/x.json") == "error: no device"
  assert capfd.readouterr().err == "slow\n"


def test_a_device_that_does_not_exist_is_refused(tf, tmp_path):
  found = refusal(*OK, f"--output={tmp_path}/x.json", "--device=TPU:3")
  assert re.search(r"'TPU:3' does not exist; this machine has .*CPU:0", found), found
