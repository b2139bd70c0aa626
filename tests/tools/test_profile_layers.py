"""Times of layers: what is timed, how often, and what is refused; no time itself."""

import re

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


def test_a_chain_computes_every_output_and_adds_the_last_ones_to_the_sums(tf):
  seen = []

  def call(values):
    return [
      tf.numpy_function(lambda x, k=k: seen.append(k) or x, values, tf.float32, False)
      for k in range(4)
    ]

  sums = [tf.zeros([2]), tf.zeros([2])]
  chained = chain.Chain(call, [tf.ones([2])], sums, device="/device:CPU:0")
  chained(3)
  assert sorted(seen) == sorted([0, 1, 2, 3] * 3)
  # The sums are read too.
  without = chain.Chain(call, [tf.ones([2])], device="/device:CPU:0")
  assert chained.num_tensors - without.num_tensors == len(sums)


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


def test_layers_are_scaled_to_add_up_to_the_whole_and_equal_ones_are_equal(
  tf, monkeypatch
):
  # A call takes as many seconds as tensors enter and leave it.
  monkeypatch.setattr(
    profile_layers,
    "call_secs",
    lambda chains, device, clock: [float(c.num_tensors) for c in chains],
  )
  found, _ = _profile(IMAGE, "task.keep_prob=1.0")
  layers = found.times.layers
  parts = ("forward", "input_gradient", "weight_gradient")
  for part, alone, whole in zip(parts, found.alone, found.whole, strict=False):
    assert alone > 0
    assert sum(getattr(x, part) for x in layers) == pytest.approx(whole)
  assert layers[0].input_gradient == 0.0
  assert all(layer.input_gradient > 0 for layer in layers[1:])
  # A loss has no weights.
  assert layers[-1].weight_gradient == 0.0
  assert all(layer.weight_gradient > 0 for layer in layers[:-1])
  assert layers[1].forward == layers[2].forward


def test_weight_gradients_are_added_up_only_if_there_are_several(tf, monkeypatch):
  sums = []

  class Spy(chain.Chain):
    def __init__(self, call, values, added=(), *, device):
      sums.append(len(added))
      super().__init__(call, values, added, device=device)

  monkeypatch.setattr(profile_layers, "Chain", Spy)
  monkeypatch.setattr(
    profile_layers, "call_secs", lambda chains, *_: [1.0] * len(chains)
  )
  _profile(IMAGE, "pipeline.num_micro_batches=1")
  assert not any(sums)
  _profile(IMAGE, "pipeline.num_micro_batches=2")
  assert any(sums)


def _made_up() -> Profile:
  return Profile(
    times=LayerTimes(
      "CPU:0", 4, (LayerTime("a", 1.0, 0.0, 1.0), LayerTime("b", 2.0, 3.0, 1.0))
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
    *("a", "1 s", "0 s", "1 s", "25.0%", f"{share:.1%}", "2.0 KiB")
  ]
  assert re.split(r"\s{2,}", rows[3]) == ["all", "3 s", "3 s", "2 s"]


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
    ((*OK, "--threads=0"), r"--threads=0: must be a whole number, at least 1$"),
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
