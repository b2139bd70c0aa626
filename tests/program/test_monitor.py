"""What a run shows of itself, in `metrics.jsonl` and to TensorBoard."""

import types

import numpy as np
import pytest

from tests.program import command, events, training
from tests.program.training import IMAGE, TEXT
from tfpipe import plan as plan_lib
from tfpipe.program import checkpoint, monitor
from tfpipe.program.monitor import Monitor


@pytest.fixture(scope="module")
def trained(tf, tmp_path_factory):
  """An image model trained for 6 steps, each of them saved and logged, and measured."""
  folder = tmp_path_factory.mktemp("seen")
  command.run(
    f"--model={IMAGE}",
    f"--logdir={folder}",
    "--devices=cpu",
    "--profile=4:2",
    "--set=train.save_interval_steps=1",
    "--set=train.keep_checkpoints=9",
    "--set=train.eval_interval_steps=3",
    "--set=train.hardware=cpu",
  )
  return folder


def test_tensorboard_has_every_logged_value(trained):
  records = training.metrics(trained, "train")
  found = events.scalars(trained / "train")
  assert len(records) == 6
  for record in records:
    step = record.pop("step")
    for name in record.keys() - {"kind"}:
      tag = name.replace("/s", "_per_sec") if name.endswith("/s") else name
      value = dict(found[tag])[step]
      assert value == pytest.approx(record[name], rel=1e-6), (tag, step)


def test_evaluations_are_curves_of_their_own(trained):
  records = training.metrics(trained, "eval")
  found = events.scalars(trained / "eval")
  assert [step for step, _ in found["loss"]] == [3, 6]
  for record in records:
    for name in record.keys() - {"kind", "step"}:
      value = dict(found[name])[record["step"]]
      assert value == pytest.approx(record[name], rel=1e-6)


def test_norms_are_those_of_the_saved_weights(trained):
  run = training.make_run(IMAGE)
  names = [f"weights/{name}" for name in run.pipeline.trainable()]

  def weights(step):
    saved = checkpoint.load(trained / f"checkpoint-{step:08d}.npz").arrays
    return np.concatenate([saved[name].ravel().astype(np.float64) for name in names])

  for record in training.metrics(trained, "train")[1:]:
    before, after = weights(record["step"] - 1), weights(record["step"])
    norm, moved = np.linalg.norm(after), np.linalg.norm(after - before)
    assert record["param_norm"] == pytest.approx(norm, rel=1e-5)
    assert record["update_ratio"] == pytest.approx(moved / norm, rel=1e-4)


def test_predictions_stand_beside_what_was_measured(trained):
  plan = plan_lib.make(training.make_run(IMAGE).params)
  (predicted,) = training.metrics(trained, "plan")
  assert predicted["step"] == 0
  assert predicted["pipeline/bubble_predicted"] == plan.bubble
  sizes = [predicted[f"memory/predicted/device_{d}"] for d in range(2)]
  assert sizes == list(plan.device_bytes)
  (measured,) = training.metrics(trained, "profile")
  assert measured["step"] == 5
  idle = [measured[f"pipeline/idle/device_{d}"] for d in range(2)]
  # The bubble is the idle share of all devices.
  assert measured["pipeline/bubble_measured"] == pytest.approx(sum(idle) / 2)
  found = events.scalars(trained / "train")
  assert [step for step, _ in found["pipeline/bubble_measured"]] == [5]
  assert [step for step, _ in found["pipeline/bubble_predicted"]] == list(range(7))


def test_samples_of_the_input_are_pictures(tf, trained):
  found = events.values(trained / "train", "input/image/image/")
  assert len(found) == 8
  (batch,) = training.make_run(IMAGE).input.dataset().take(1).as_numpy_iterator()
  image = batch["image"][3]
  expected = 255 * (image - image.min()) / (image.max() - image.min())
  png = tf.io.decode_png(found[3].image.encoded_image_string).numpy()
  assert np.abs(png - expected).max() <= 0.5


def test_hparams_are_the_main_params_and_what_was_changed(trained):
  (value,) = events.values(trained, "_hparams_/session_start_info")
  content = value.metadata.plugin_data.content
  for name in (b"pipeline.schedule", b"input.batch_size", b"train.hardware"):
    assert name in content
  assert b"train.log_interval_steps" not in content


def test_a_run_that_goes_on_adds_to_its_curves(tf, trained):
  arguments = (f"--model={IMAGE}", f"--logdir={trained}", "--mode=train")
  before = events.scalars(trained / "train")
  command.run(*arguments, "--max_steps=7")
  after = events.scalars(trained / "train")
  assert after["loss"][:-1] == before["loss"]
  assert after["loss"][-1][0] == 7
  starts = [e.step for e in events.read(trained / "train") if e.session_log.status]
  assert starts == [1, 7]


def test_texts_are_shown_as_ids_where_no_characters_are_known(tf, tmp_path):
  training.train(tmp_path, TEXT, "train.max_steps=1")
  found = events.values(tmp_path / "train", "input/ids")
  (batch,) = training.make_run(TEXT).input.dataset().take(1).as_numpy_iterator()
  texts = tf.make_ndarray(found[0].tensor).tolist()
  assert texts == [b"    " + b" ".join(b"%d" % i for i in row) for row in batch["ids"]]
  assert not events.values(tmp_path / "train", "input/weights")


def test_rates_follow_from_examples_and_costs():
  params = training.trainer.model_params(
    TEXT, ["train.hardware=p100", "pipeline.num_micro_batches=4"]
  )
  plan = plan_lib.make(params)
  found = monitor.rates(params, plan, examples_per_sec=8.0, tokens=20)
  # Batches of 4 rows of 5 tokens, 2 devices of 9.3 TFLOP/s.
  flops = 2 * 3 * 4 * sum(cost.matmul_flops for cost in plan.costs)
  assert found == pytest.approx(
    {
      "step_secs": 0.5,
      "tokens/s": 40.0,
      "flops/s": flops,
      "mfu": flops / (2 * 9.3e12),
    }
  )


def test_the_flops_of_a_transformer_are_those_of_its_products():
  params = training.trainer.model_params(TEXT, ["task.num_heads=1"])
  plan = plan_lib.make(params)
  found = monitor.rates(params, plan, examples_per_sec=4.0)
  # Per step: 20 tokens; projections, attention over 5 tokens, feed-forward, softmax.
  macs = 20 * (4 * 8 * 8 + 2 * 5 * 8 + 2 * 8 * 16 + 8 * 11)
  assert found["flops/s"] == 3 * 2 * macs
  assert "mfu" not in found  # nobody said what the devices are


@pytest.mark.parametrize(
  ("name", "tokens", "names"),
  [
    (IMAGE, 0, {"step_secs", "flops/s"}),
    (TEXT, 20, {"step_secs", "flops/s", "tokens/s"}),
    # Of another shape than was planned for, whose FLOPs are not known.
    (TEXT, 12, {"step_secs", "tokens/s"}),
  ],
)
def test_tokens_are_those_of_the_batches_that_came(
  tf, tmp_path, monkeypatch, name, tokens, names
):
  run = training.make_run(name)
  if tokens == 12:
    shapes = [run.input.specs()] * 2
    monkeypatch.setattr(run.input, "all_specs", lambda: shapes)
  seen = Monitor(run, tmp_path)
  batch = next(iter(run.input.dataset()))
  if name == TEXT:
    batch = {field: tensor[:, : tokens // 4] for field, tensor in batch.items()}
  assert len(list(seen.watched(iter([batch] * 3)))) == 3
  update = dict.fromkeys(("param_norm", "update_norm", "consecutive_skips"), 0)
  found = seen.values(update, 3.0 * run.input.params.batch_size)
  assert names == found.keys() & {"step_secs", "flops/s", "tokens/s"}
  if tokens:
    assert found["tokens/s"] == pytest.approx(3 * tokens)


def test_waiting_is_the_mean_over_the_batches_since_the_last_time(
  tf, tmp_path, monkeypatch
):
  now = [100.0]
  monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])

  def slow():
    for secs in (5.0, 1.0, 2.0, 6.0):
      now[0] += secs
      yield {}

  run = training.make_run(IMAGE)
  seen = Monitor(run, tmp_path)
  batches = seen.watched(slow())
  update = dict.fromkeys(("param_norm", "update_norm", "consecutive_skips"), 0)
  seen.start(next(batches))  # the first is waited for while the step is built
  for _ in range(2):
    next(batches)
    now[0] += 100.0  # a step
  assert seen.values(update, 0.0)["data_wait_secs"] == 1.5
  next(batches)
  assert seen.values(update, 0.0)["data_wait_secs"] == 6.0
  assert "data_wait_secs" not in seen.values(update, 0.0)
  assert next(batches, None) is None


def test_memory_of_devices_is_asked_of_those_that_count_it(tf, monkeypatch):
  asked = types.SimpleNamespace(
    get_memory_info=lambda name: {"peak": int(name[-1]) + 7, "current": 1}
  )
  monkeypatch.setattr(tf.config, "experimental", asked)
  devices = ("/device:CPU:0", "/device:GPU:0", "/device:GPU:1")
  found = monitor._memory(devices)
  assert found["memory/device_1"] == 7
  assert found["memory/device_2"] == 8
  assert "memory/device_0" not in found
  # This process holds TensorFlow.
  assert 1e8 < found["memory/host"] < 1e12
