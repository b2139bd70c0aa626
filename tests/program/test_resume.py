"""A run that was interrupted equals one that was not, bit for bit."""

import pytest

from tests.program import training
from tests.program.training import IMAGE, TEXT

ACCUMULATES = "task.learner.accumulate_steps=2"


def layout(num_partitions, schedule="gpipe", remat="none"):
  return (
    f"pipeline.num_partitions={num_partitions}",
    f"pipeline.schedule={schedule}",
    f"pipeline.remat={remat}",
  )


@pytest.fixture(scope="module")
def uninterrupted(tf, tmp_path_factory):
  """Gives the last checkpoint of a run of six steps on one device."""
  made = {}

  def get(name, *overrides):
    if (name, overrides) not in made:
      folder = tmp_path_factory.mktemp("uninterrupted")
      training.train(folder, name, "train.max_steps=6", *layout(1), *overrides)
      made[name, overrides] = training.newest(folder)
    return made[name, overrides]

  return get


@pytest.mark.parametrize(
  ("name", "before", "after", "overrides"),
  [
    (IMAGE, layout(1), layout(4, "1f1b", "cell"), (ACCUMULATES,)),
    (IMAGE, layout(4, "gpipe", "layer"), layout(1), (ACCUMULATES,)),
    (IMAGE, layout(2, "1f1b"), layout(3, "gpipe", "cell"), ()),
    (TEXT, layout(3, "1f1b", "cell"), layout(2, "gpipe", "layer"), ()),
    (IMAGE, layout(2, "zb_v", "cell"), layout(3, "zb_h1"), (ACCUMULATES,)),
    (IMAGE, layout(2, "interleaved"), layout(2, "zb_interleaved", "layer"), ()),
    (TEXT, layout(3, "eager_1f1b", "layer"), layout(2, "dualpipe_v", "cell"), ()),
    (TEXT, layout(2, "zb_auto"), layout(3, "zb_h2", "cell"), ()),
  ],
)
def test_a_run_continued_with_another_layout_equals_one_that_was_never_interrupted(
  tmp_path, uninterrupted, name, before, after, overrides
):
  # With two steps for an update, step 3 is in the middle of one.
  training.train(tmp_path, name, "train.max_steps=3", *before, *overrides)
  assert training.newest(tmp_path).step == 3
  training.train(tmp_path, name, "train.max_steps=6", *after, *overrides)
  expected = uninterrupted(name, *overrides)
  assert training.differences(training.newest(tmp_path), expected) == []


def test_a_run_interrupted_at_every_step_equals_one_that_was_never_interrupted(
  tmp_path, uninterrupted
):
  for step in range(1, 7):
    overrides = (f"train.max_steps={step}", ACCUMULATES)
    training.train(tmp_path, IMAGE, *overrides, *layout(1 + step % 2))
  expected = uninterrupted(IMAGE, ACCUMULATES)
  assert training.differences(training.newest(tmp_path), expected) == []


@pytest.mark.parametrize("name", [IMAGE, TEXT])
def test_every_loss_printed_by_an_interrupted_run_is_that_of_one_never_interrupted(
  tf, tmp_path, name
):
  overrides = ("pipeline.num_micro_batches=4", "task.learner.accumulate_steps=3")
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  training.train(whole, name, "train.max_steps=8", *overrides, *layout(1))
  expected = training.untimed(whole)
  assert [record["step"] for record in expected] == list(range(1, 9))
  assert len({record["loss"] for record in expected}) == 8

  # Steps 2, 5 and 7 are inside a window of three steps.
  training.train(parts, name, "train.max_steps=2", *overrides, *layout(2))
  training.train(parts, name, "train.max_steps=5", *overrides, *layout(3, "1f1b"))
  # As if it had been killed before it saved: step 5 comes again.
  (parts / "checkpoint-00000005.npz").unlink()
  training.train(parts, name, "train.max_steps=7", *overrides, *layout(1))
  training.train(parts, name, "train.max_steps=8", *overrides, *layout(2, "gpipe"))
  found = training.untimed(parts)
  assert found == expected


def test_evaluating_on_the_way_changes_nothing(tmp_path, uninterrupted):
  overrides = ("train.max_steps=6", "train.eval_interval_steps=1", ACCUMULATES)
  training.train(tmp_path, IMAGE, *overrides, *layout(1), evaluates=True)
  steps = [record["step"] for record in training.metrics(tmp_path, "eval")]
  assert steps == [1, 2, 3, 4, 5, 6]
  expected = uninterrupted(IMAGE, ACCUMULATES)
  assert training.differences(training.newest(tmp_path), expected) == []


def test_a_checkpoint_holds_everything_by_names_of_layers(uninterrupted):
  found = set(uninterrupted(IMAGE, ACCUMULATES).arrays)
  weights = {f"block_{i}/{kind}" for i in range(4) for kind in "wb"}
  moving = {
    f"block_{i}/moving_{kind}" for i in range(4) for kind in ("mean", "variance")
  }
  counters = {"step", "consecutive_skips", "accumulated_calls", "accumulated_weight"}
  assert found == {
    "step",
    *(f"weights/{name}" for name in weights | moving),
    *(f"slots/{name}/momentum" for name in weights),
    *(f"ema/{name}" for name in weights),
    *(f"accumulators/{name}" for name in weights),
    *(f"learner/{name}" for name in counters),
  }


def test_entries_are_the_same_for_every_layout(tf):
  entries = [
    {name: tuple(variable.shape) for name, variable in run.state().items()}
    for run in (
      training.make_run(TEXT, *layout(1)),
      training.make_run(TEXT, *layout(4, "1f1b", "layer")),
    )
  ]
  assert entries[0] == entries[1]


def test_what_changed_since_the_checkpoint_is_shown(tf, tmp_path, capsys):
  training.train(tmp_path, IMAGE, "train.max_steps=1", *layout(1))
  capsys.readouterr()
  training.train(tmp_path, IMAGE, "train.max_steps=1", *layout(2))
  shown = capsys.readouterr().out
  assert f"restored step 1 from {tmp_path}\n" in shown
  assert "- pipeline.num_partitions : 1\n" in shown
  assert "+ pipeline.num_partitions : 2\n" in shown
  assert "train.max_steps" not in shown


def test_a_damaged_checkpoint_is_skipped_and_shown(tf, tmp_path, capsys, uninterrupted):
  training.train(tmp_path, IMAGE, *layout(1), ACCUMULATES)
  (tmp_path / "checkpoint-00000006.npz").write_bytes(b"PK")
  training.train(tmp_path, IMAGE, *layout(1), ACCUMULATES)
  shown = capsys.readouterr().out
  assert "skipped: " in shown
  assert "checkpoint-00000006.npz is not a complete checkpoint" in shown
  assert f"restored step 4 from {tmp_path}\n" in shown
  expected = uninterrupted(IMAGE, ACCUMULATES)
  assert training.differences(training.newest(tmp_path), expected) == []


@pytest.mark.parametrize(
  ("name", "override", "message"),
  [
    (TEXT, "train.seed=0", "is of experiment tests.program.tiny.Image, this run is of"),
    (IMAGE, "task.dim=5", r"weights/block_0/w: \(9, 6\) in the checkpoint, \(9, 5\)"),
    (IMAGE, "task.num_blocks=3", r"(?s)missing|not in this model: weights/block_3/w"),
    (IMAGE, "task.learner.ema_decay=0", r"not in this model: ema/block_0/b \(6,\)"),
    (IMAGE, ACCUMULATES, r"missing: accumulators/block_0/b \(6,\)"),
  ],
)
def test_a_checkpoint_of_something_else_is_refused_whole(
  tf, uninterrupted, name, override, message
):
  run = training.make_run(name, override)
  before = run.checkpoint()
  with pytest.raises(ValueError, match=message):
    run.restore(uninterrupted(IMAGE))
  assert training.differences(run.checkpoint(), before) == []
