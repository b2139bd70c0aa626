import pytest

from tfpipe import model
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.params import Params
from tfpipe.task import Task


def make(test=True):
  image = SyntheticImageInput.Params().Set(batch_size=4)
  evaluated = SyntheticImageInput.EvalParams().Set(batch_size=4)
  return model.ModelParams("m", Task.Params(), image, evaluated if test else None)


@pytest.mark.parametrize("test", [True, False])
def test_the_defaults_are_allowed(test):
  model.check(make(test))


def test_every_parameter_is_described():
  for p in (make(), make().pipeline, make().train):
    assert all(len(field.description) > 5 for field in p.IterFields())


@pytest.mark.parametrize(
  ("path", "value"),
  [
    ("pipeline.lengths", (3,)),
    ("pipeline.lengths", [3]),
    ("pipeline.remat", "none"),
    ("pipeline.schedule", "1f1b"),
    ("pipeline.schedule", "zb_auto"),
    ("pipeline.schedule", "of/mine.csv"),
    ("pipeline.schedule", "mine.json"),
    ("pipeline.layer_times", "times.json"),
    ("pipeline.xla", True),
    ("pipeline.compute_dtype", "bfloat16"),
    ("pipeline.compute_dtype", "float16"),
    ("train.max_steps", 0),
    ("train.seed", 2**70),
    ("train.eval_interval_steps", 5),
  ],
)
def test_what_is_allowed_passes(path, value):
  model.check(make().Set(**{path: value}))


_COUNTS = {
  "pipeline.num_partitions": 1,
  "pipeline.num_micro_batches": 1,
  "pipeline.stages_per_device": 0,
  "pipeline.group_size": 0,
  "pipeline.num_pairs": 0,
  "pipeline.intra_op_threads": 0,
  "train.log_interval_steps": 1,
  "train.save_interval_steps": 1,
  "train.keep_checkpoints": 1,
  "train.max_steps": 0,
  "train.eval_interval_steps": 0,
  "train.seed": 0,
}


@pytest.mark.parametrize(("path", "least"), _COUNTS.items())
def test_counts_are_whole_numbers_from_their_least_value_on(path, least):
  model.check(make().Set(**{path: least}))
  for value in (least - 1, True, 2.0, "3", None, [1]):
    message = rf"^{path}={value!r}: must be a whole number, at least {least}$"
    message = message.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(ValueError, match=message):
      model.check(make().Set(**{path: value}))


def test_every_parameter_is_checked():
  paths = {f"train.{key}" for key in model.TrainParams().GetKeys()}
  paths |= {f"pipeline.{key}" for key in model.PipelineParams().GetKeys()}
  others = {"schedule", "remat", "lengths", "devices", "xla", "layer_times"}
  others |= {"compute_dtype"}
  # tests/test_saving.py
  saving = {"save_interval_minutes", "keep_every_hours", "keep_best"}
  saving |= {"warm_start", "warm_start_rules"}
  # tests/program/test_guard_params.py
  guards = {"loss_spike", "on_loss_spike", "step_timeout_secs"}
  # tests/test_backend.py
  backend = {"pipeline.backend", "pipeline.tpu", "pipeline.num_replicas"}
  backend |= {"train.steps_per_call"}
  assert paths == {
    *_COUNTS,
    *backend,
    "train.deterministic",
    *(f"pipeline.{key}" for key in others),
    *(f"train.{key}" for key in saving | guards),
    "train.hardware",
  }


@pytest.mark.parametrize("name", ["", "a100_80gb", "cpu"])
def test_hardware_that_is_known_or_not_told_is_allowed(name):
  model.check(make().Set(**{"train.hardware": name}))


@pytest.mark.parametrize(
  ("value", "message"),
  [
    (3, "train.hardware=3: must be a name, or empty"),
    ("a100", "'a100': .* is not one of .*; did you mean 'a100_40gb' or 'a100_80gb'"),
    ("no.json", "train.hardware='no.json': hardware 'no.json': there is no such file"),
  ],
)
def test_hardware_that_is_not_known_is_refused(value, message):
  with pytest.raises(ValueError, match=message):
    model.check(make().Set(**{"train.hardware": value}))


@pytest.mark.parametrize("key", ["schedule", "remat", "compute_dtype"])
@pytest.mark.parametrize("value", [None, 1, True, "cel", ("cell",)])
def test_choices_are_one_of_the_names(key, value):
  with pytest.raises(ValueError, match=rf"^pipeline.{key}=.*: must be one of "):
    model.check(make().Set(**{f"pipeline.{key}": value}))


def test_the_nearest_compute_dtype_is_named():
  message = (
    r"pipeline\.compute_dtype='bfloat': must be one of float32, bfloat16, float16; did "
    r"you mean 'bfloat16'\?$"
  )
  with pytest.raises(ValueError, match=message):
    model.check(make().Set(**{"pipeline.compute_dtype": "bfloat"}))


@pytest.mark.parametrize("key", ["loss_scale", "loss_scale_steps"])
def test_only_float16_scales_the_loss(key):
  for dtype in ("float32", "bfloat16", "float16"):
    p = make().Set(**{"pipeline.compute_dtype": dtype, f"task.learner.{key}": 8})
    if dtype == "float16":
      model.check(p)
    else:
      message = (
        rf"^task\.learner\.{key}=8: must be 0 with pipeline.compute_dtype='{dtype}'"
      )
      with pytest.raises(ValueError, match=message):
        model.check(p)


@pytest.mark.parametrize(
  ("option", "allowed"),
  [
    (
      "stages_per_device",
      {"interleaved", "looped_bfs", "zb_v", "zb_interleaved", "dualpipe_v", "zb_auto"},
    ),
    ("group_size", {"interleaved", "zb_interleaved"}),
    ("num_pairs", {"chimera", "chimera_doubling", "chimera_halving"}),
  ],
)
def test_an_option_that_a_schedule_does_not_have_is_refused(option, allowed):
  for name in (*model.SCHEDULES, "mine.csv"):
    p = make().Set(**{"pipeline.schedule": name, f"pipeline.{option}": 2})
    if name in allowed:
      model.check(p)
    else:
      message = (
        rf"^pipeline.{option}=2: must be 0 with schedule {name}; only .* take it"
      )
      with pytest.raises(ValueError, match=message):
        model.check(p)


@pytest.mark.parametrize("value", [None, 1, ("a",)])
def test_layer_times_are_the_name_of_a_file(value):
  with pytest.raises(
    ValueError, match=r"^pipeline.layer_times=.*: must be the name of"
  ):
    model.check(make().Set(**{"pipeline.layer_times": value}))


@pytest.mark.parametrize("value", ["mine.txt", "mine.csvx", "zb_aut"])
def test_a_schedule_is_a_name_or_a_file(value):
  message = rf"^pipeline.schedule='{value}': .*zb_auto, or a file .csv or .json"
  with pytest.raises(ValueError, match=message):
    model.check(make().Set(**{"pipeline.schedule": value}))


@pytest.mark.parametrize("value", [None, 1, "True"])
def test_switches_are_true_or_false(value):
  with pytest.raises(ValueError, match=r"^pipeline.xla=.*: must be True or False"):
    model.check(make().Set(**{"pipeline.xla": value}))


@pytest.mark.parametrize(
  "lengths", [(0,), (1, 0), (-1,), (True,), (2.0,), ("2",), 2, None, "2", {1: 2}]
)
def test_lengths_are_a_number_of_layers_for_each_cell(lengths):
  with pytest.raises(ValueError, match=r"^pipeline.lengths=.*: must be empty or hold"):
    model.check(make().Set(**{"pipeline.lengths": lengths}))


@pytest.mark.parametrize("key", ["task", "input", "eval_input"])
def test_task_and_inputs_must_be_such(key):
  for value in (3, "x", Params()):
    with pytest.raises(ValueError, match=rf"^{key}=.*: must be the Params of a class"):
      model.check(make().Set(**{key: value}))
  wrong = make()
  wrong.Get(key).cls = int
  with pytest.raises(ValueError, match=rf"^{key}=<class 'int'>: must be the Params of"):
    model.check(wrong)


@pytest.mark.parametrize("key", ["task", "input"])
def test_task_and_input_cannot_be_none(key):
  with pytest.raises(ValueError, match=rf"^{key}=None: must be the Params of a class"):
    model.check(make().Set(**{key: None}))


def test_an_evaluation_without_end_is_refused():
  with pytest.raises(ValueError, match=r"^eval_input.repeat=True: must be False"):
    model.check(make().Set(**{"eval_input.repeat": True}))


def test_an_interval_of_evaluations_needs_an_evaluation_input():
  with pytest.raises(ValueError, match=r"^train.eval_interval_steps=5: must be 0"):
    model.check(make(test=False).Set(**{"train.eval_interval_steps": 5}))


@pytest.mark.parametrize(
  ("spec", "number"),
  [
    ("auto", 3),
    ("cpu", 3),
    ("gpu", 3),
    ("CPU:0", 1),
    ("cpu:0,cpu:0", 2),
    ("GPU:0, GPU:1", 2),
    ("/device:GPU:0,/job:localhost/replica:0/task:0/device:CPU:1", 2),
  ],
)
def test_device_specifications_that_are_allowed(spec, number):
  model.check_devices(spec, number)


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("", "'' is not a device name such as 'GPU:0', nor one of auto, cpu, gpu"),
    ("cpus", r"'cpus' is not a device name .*; did you mean 'cpu'\?"),
    ("GPU:0,gpu", "'gpu' is not a device name"),
    ("GPU:0,GPU:", "'GPU:' is not a device name"),
    ("GPU:0;GPU:1", "'GPU:0;GPU:1' is not a device name"),
    ("GPU:-1,GPU:0", "'GPU:-1' is not a device name"),
    ("GPU:0", "names 1 devices; the schedule needs 2"),
    ("GPU:0,GPU:1,GPU:2", "names 3 devices; the schedule needs 2"),
    (0, "'0' is not a device name"),
    (None, "'None' is not a device name"),
  ],
)
def test_device_specifications_that_are_refused(spec, message):
  with pytest.raises(ValueError, match=message) as error:
    model.check_devices(spec, 2)
  assert f"pipeline.devices={spec!r}" in str(error.value)


@pytest.mark.parametrize(
  ("spec", "number"),
  [("auto", 1), ("cpu", 3), ("CPU:1,CPU:1", 2), ("GPU:7,cpu:1", 2), ("TPU:5", 1)],
)
def test_logical_cpus_below_the_number_of_devices_are_allowed(spec, number):
  model.check_cpus(spec, number)


@pytest.mark.parametrize(
  ("spec", "name"),
  [
    ("CPU:0,CPU:2", "CPU:2"),
    ("GPU:0, cpu:5000", "cpu:5000"),
    ("/device:CPU:2,CPU:9", "/device:CPU:2"),
    ("CPU:1,/job:localhost/replica:0/task:0/device:CPU:3", "/job:.*/device:CPU:3"),
  ],
)
def test_logical_cpus_beyond_the_number_of_devices_are_refused(spec, name):
  message = (
    rf"^pipeline.devices='{spec}': '{name}' must be one of .*, 2: CPU:0 to CPU:1$"
  )
  with pytest.raises(ValueError, match=message):
    model.check_cpus(spec, 2)
