import pytest

from tests.program import training
from tests.program.training import IMAGE
from tfpipe.optimizers import learning_rate
from tfpipe.program import report


def test_a_line_is_names_and_values_that_grep_finds():
  values = {"step": "3/10", "loss": 2.3456789, "skips": 2, "rate": 1e-7, "nan": 1e99}
  shown = "step=3/10 loss=2.3457 skips=2 rate=1e-07 nan=1e+99"
  assert report.line(values) == shown


def test_rate_and_time_left_are_those_since_the_last_line(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
  progress = report.Progress(step=20, max_steps=100, batch_size=8)
  now[0] = 105.0
  assert progress.rate(30) == (10 * 8 / 5.0, "35 s")
  now[0] = 1000.0  # an evaluation
  progress.restart(30)
  now[0] = 1001.0
  assert progress.rate(40) == (80.0, "6 s")
  assert progress.rate(40) == (0.0, "unknown")
  now[0] = 1002.0
  assert progress.rate(100) == (480.0, "0 s")


def test_the_first_screen_has_the_changes_the_cut_and_the_prediction():
  run_params = training.trainer.model_params(IMAGE, ["train.max_steps=9"])
  plan = training.plan_lib.make(run_params)
  lines = report.first_screen(run_params, "? train:\n<   max_steps: 9\n", plan)
  assert lines.splitlines()[:5] == [
    f"experiment {IMAGE}",
    "changed from the experiment:",
    "  ? train:",
    "  <   max_steps: 9",
    training.plan_lib.table(plan).splitlines()[0],
  ]
  assert lines.splitlines()[-1] == training.plan_lib.summary(plan)
  assert "changed" not in report.first_screen(run_params, "", plan)


@pytest.mark.parametrize(
  ("changes", "note"),
  [
    ((), False),
    (("train.max_steps=8",), False),  # the last step follows 7 of 8 updates
    (("train.max_steps=9",), True),
    (("train.max_steps=16", "task.learner.accumulate_steps=2"), False),
    (("train.max_steps=17", "task.learner.accumulate_steps=2"), True),
    (("train.max_steps=2", "task.learner.accumulate_steps=2"), False),
    (("train.max_steps=9", "task.learner.lr_schedule.after.floor=0.1"), False),
    (("train.max_steps=0",), False),
  ],
)
def test_the_first_screen_says_if_the_learning_rate_ends_before_the_training(
  changes, note
):
  run_params = training.trainer.model_params(IMAGE, [])
  decay = learning_rate.Cosine.Params().Set(total_steps=8)
  warmup = learning_rate.LinearWarmup.Params().Set(warmup_steps=1, after=decay)
  run_params.train.max_steps = 8
  run_params.task.learner.lr_schedule = warmup if changes else None
  for change in changes:
    run_params.SetFromText(*change.split("="))
  shown = report.first_screen(run_params, "", training.plan_lib.make(run_params))
  steps = run_params.train.max_steps
  assert (f"note: the learning rate is 0 at the last step, {steps}: " in shown) == note
  assert ("note" in shown) == note
