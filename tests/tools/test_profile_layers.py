"""Times of layers: what is timed, how often, and what is refused; no time itself."""

import re
import time

import pytest
from absl import flags
from absl.testing import flagsaver

from tests.program.training import IMAGE, TEXT
from tfpipe import layer_times, trainer
from tfpipe import plan as plan_lib
from tfpipe.layer_times import LayerTime, LayerTimes
from tfpipe.network import Network
from tfpipe.program import chain, profile_layers
from tfpipe.program.profile_layers import Profile
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
  monkeypatch.setattr(chain, "MIN_SECS", 1e-2)
  monkeypatch.setattr(chain, "REPEATS", 3)


class Machine:
  """A clock and chains that move it: a start, then equal calls."""

  def __init__(self) -> None:
    self.now = 0.0
    self.counts: dict[float, list[int]] = {}

  def clock(self) -> float:
    return self.now

  def chain(self, start: float, call: float, pause_at: int = -1):
    counts = self.counts.setdefault(call, [])

    def chained(count: int) -> None:
      counts.append(count)
      paused = 100.0 if len(counts) == pause_at else 0.0
      self.now += start + count * call + paused

    return chained


def test_the_start_of_a_chain_is_not_charged_to_its_calls():
  machine = Machine()
  # Sums and differences of powers of two are exact.
  secs = [2.0**-12, 2.0**-6, 2.0]
  chains = [machine.chain(2.0**-5, s) for s in secs]
  assert chain.measure(chains, machine.clock) == secs


def test_chains_are_as_long_as_they_must_be_and_the_slow_run_once():
  machine = Machine()
  chain.measure([machine.chain(0.0, 1e-4), machine.chain(0.0, 1.0)], machine.clock)
  assert max(machine.counts[1e-4]) * 1e-4 >= chain.MIN_SECS
  assert max(machine.counts[1.0]) == 1


def test_one_slow_round_does_not_count():
  machine = Machine()
  # The warm-up and the search for the length are two runs; the third is a round's.
  chained = machine.chain(0.0, 1.0, pause_at=3)
  assert chain.measure([chained], machine.clock) == [1.0]


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_chain_runs_a_pure_function_as_often_as_it_says_one_call_at_a_time(tf, count):
  calls, running, most = [], [], []

  def counted(x):
    running.append(x)
    time.sleep(0.002)  # lets another call begin, if one may
    most.append(len(running))
    calls.append(x)
    running.pop()
    return x

  def call(values):
    # Stateless: equal calls may be merged, and one that nobody reads is dropped.
    return [tf.numpy_function(counted, values, tf.float32, stateful=False)]

  chained = chain.Chain(call, [tf.ones([2])], device="/device:CPU:0")
  chained(count)
  assert len(calls) == count
  assert all(number == 1 for number in most)
  # The tensor that enters, and the one that leaves.
  empty = chain.Chain(list, [tf.ones([2])] * 3, device="/device:CPU:0")
  assert empty.num_tensors - chained.num_tensors == 4


def test_a_chain_computes_every_output(tf):
  seen = []

  def call(values):
    return [
      tf.numpy_function(lambda x, k=k: seen.append(k) or x, values, tf.float32, False)
      for k in range(4)
    ]

  chain.Chain(call, [tf.ones([2])], device="/device:CPU:0")(3)
  assert sorted(seen) == sorted([0, 1, 2, 3] * 3)


def test_a_chain_keeps_variables_and_changes_them_once_a_call(tf):
  seen = tf.Variable(0.0)

  def counting():
    hidden = tf.Variable(0.0)
    return lambda values: [hidden.assign_add(1.0), seen.assign(hidden)]

  chain.Chain(counting(), [tf.ones([2])], device="/device:CPU:0")(5)
  assert seen.numpy() == 5.0


class Ticks:
  """A clock that says that whatever was done took a second."""

  def __init__(self) -> None:
    self.now = 0.0

  def __call__(self) -> float:
    self.now += 1.0
    return self.now


def _profile(name: str, *overrides: str) -> tuple[Profile, Network]:
  params = trainer.model_params(name, overrides)
  found = profile_layers.profile(params, "/device:CPU:0", Ticks())
  return found, Network(params)


def test_equal_layers_are_timed_once_and_all_are_listed_in_order(tf, short):
  found, network = _profile(IMAGE, "task.keep_prob=1.0", "task.num_blocks=6")
  assert [layer.name for layer in found.times.layers] == list(network.names)
  # The first block has another input, four are equal, the last has other units.
  assert (len(network.names), found.num_timed) == (7, 4)
  assert found.times.batch == 4
  costs = network.costs(2)
  assert found.border_bytes == tuple(cost.border_bytes for cost in costs)


def test_tied_weights_dropout_and_side_inputs_are_profiled(tf, short):
  found, network = _profile(TEXT)
  assert [layer.name for layer in found.times.layers] == list(network.names)


@pytest.fixture
def counted(monkeypatch):
  """Lets the first chain take a second, the next two, and so on; gives the chains."""
  found = []

  def secs(chains, device, clock):
    found.extend(chains)
    return [float(index + 1) for index in range(len(chains))]

  monkeypatch.setattr(profile_layers, "call_secs", secs)
  return found


def test_gradients_are_what_is_longer_than_the_forward_and_add_up_to_the_whole(
  tf, counted
):
  found, _ = _profile(IMAGE, "task.keep_prob=1.0", "task.num_blocks=2")
  # block_0: F 1, FW 2, at once 3; block_1: F 4, FB 5, FBW 6, 7; loss: 8, FB 9, 10; the
  # whole, whose second layer has a B: 11, 12, 13, 14; the update: 15.
  assert len(counted) == 15
  assert found.alone == (1 + 4 + 8, 0 + 1 + 1, 1 + 1 + 0, 2 + 3 + 2)
  assert found.whole == (11, 1, 1, 3)
  first, second, loss = found.times.layers
  factor = 11 / 13
  assert first.forward == pytest.approx(1 * factor)
  assert (first.input_gradient, first.weight_gradient) == (0.0, 0.5)
  assert second.forward == pytest.approx(4 * factor)
  assert (second.input_gradient, second.weight_gradient) == (0.5, 0.5)
  assert (loss.input_gradient, loss.weight_gradient) == (0.5, 0.0)


def test_an_update_is_divided_by_the_numbers_of_trained_weights(tf, counted):
  found, network = _profile(IMAGE, "task.num_blocks=3")
  updates = [layer.update for layer in found.times.layers]
  assert sum(updates) == pytest.approx(len(counted))  # the last chain
  counts = [cost.param_count for cost in network.costs(2)]
  assert counts[-1] == 0
  for update, count in zip(updates, counts, strict=True):
    assert update == pytest.approx(len(counted) * count / sum(counts))


def test_weight_gradients_are_added_up_only_if_there_are_several(tf, counted):
  _profile(IMAGE, "pipeline.num_micro_batches=1")
  alone = [len(made._values) for made in counted]
  counted.clear()
  _profile(IMAGE, "pipeline.num_micro_batches=2")
  several = [len(made._values) for made in counted]
  # Of the first block, w and b; nothing is added in an update.
  assert [b - a for a, b in zip(alone, several, strict=True)][:3] == [2, 2, 2]
  assert several[-1] == alone[-1]


def _made_up() -> Profile:
  return Profile(
    times=LayerTimes(
      "CPU:0", 4, (LayerTime("a", 1.0, 0.0, 1.0, 4.0), LayerTime("b", 2.0, 3.0, 1.0))
    ),
    border_bytes=(2048, 8),
    num_timed=2,
    alone=(2.0, 3.0, 1.0, 4.0),
    whole=(3.0, 3.0, 2.0, 4.0),
  )


def test_the_table_has_shares_beside_those_by_flops():
  costs = Network(trainer.model_params(IMAGE, [])).costs(2)[:2]
  rows = tool.table(_made_up(), costs).splitlines()
  by_flops = layer_times.from_costs(costs).layers
  share = by_flops[0].total / (by_flops[0].total + by_flops[1].total)
  assert re.split(r"\s{2,}", rows[1]) == [
    *("a", "1 s", "0 s", "1 s", "4 s", "25.0%", f"{share:.1%}", "2.0 KiB")
  ]
  assert re.split(r"\s{2,}", rows[3]) == ["all", "3 s", "3 s", "2 s", "4 s"]


def test_the_check_compares_the_layers_with_one_cell_and_apart_with_at_once():
  rows = tool.check(_made_up()).splitlines()
  assert re.split(r"\s{2,}", rows[1]) == ["forward", "2 s", "3 s", "1.500"]
  assert rows[-1].endswith("apart against at once: 5 s / 4 s = 1.250")


def test_the_command_writes_times_that_the_plan_takes(tf, short, tmp_path, capsys):
  path = tmp_path / "times.json"
  size = ("--set=task.dim=512", "--set=task.keep_prob=1.0")
  run(f"--model={IMAGE}", *size, "--device=CPU:0", f"--output={path}")
  times = layer_times.read(path)
  assert tuple(layer.name for layer in times.layers) == IMAGE_LAYERS
  assert times.batch == 4
  assert times.device.startswith("CPU:0, ")
  # The others take microseconds, which a busy machine may hide.
  assert all(layer.total > 0 for layer in times.layers[1:3])
  shown = capsys.readouterr().out
  assert all(name in shown for name in IMAGE_LAYERS)
  assert f"wrote {path}" in shown
  params = trainer.model_params(IMAGE, ["task.dim=512", f"pipeline.layer_times={path}"])
  planned = plan_lib.make(params)
  assert planned.in_seconds
  total = sum(layer.total for layer in times.layers)
  spent = planned.times.forward, planned.times.input_gradient
  spent += (planned.times.weight_gradient,)
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
      r"--output, --set, --threads$",
    ),
    ((*OK, "--num_partitions=2"), r"--num_partitions has no effect here"),
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
  monkeypatch.setattr(tool, "_device", refuse)
  found = refusal(*arguments)
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []


def test_a_device_that_does_not_exist_is_refused(tf, tmp_path):
  found = refusal(*OK, f"--output={tmp_path}/x.json", "--device=TPU:3")
  assert re.search(r"'TPU:3' does not exist; this machine has .*CPU:0", found), found
