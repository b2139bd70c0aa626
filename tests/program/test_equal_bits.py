"""What a run adds around a step changes no bit of it, however it is cut and ordered."""

import pytest

from tests.program import training
from tests.program.test_text_inputs import BUCKETED, PACKED, SMALL
from tests.program.training import IMAGE, TEXT
from tfpipe.program.run import LOSSES

# Partitions, schedule, remat.
LAYOUTS = ((2, "1f1b", "cell"), (3, "zb_h1", "layer"), (3, "gpipe", "none"))


def _layout(num_partitions, schedule, remat):
  return (
    f"pipeline.num_partitions={num_partitions}",
    "pipeline.num_micro_batches=2",
    f"pipeline.schedule={schedule}",
    f"pipeline.remat={remat}",
  )


@pytest.mark.parametrize(
  ("name", "more"), [(PACKED, ()), (BUCKETED, ("input.bucket_lengths=(64,)",))]
)
def test_short_texts_with_dropout_give_equal_bits_for_every_layout(
  tf, tmp_path, name, more
):
  changes = (*SMALL, *more, "train.max_steps=3", "task.dropout_keep_prob=0.7")
  whole = tmp_path / "whole"
  training.train(whole, name, *changes, *_layout(1, "gpipe", "none"))
  expected = training.newest(whole)
  for number, layout in enumerate(LAYOUTS):
    folder = tmp_path / str(number)
    training.train(folder, name, *changes, *_layout(*layout))
    assert not training.differences(training.newest(folder), expected), layout


@pytest.mark.parametrize("name", [IMAGE, TEXT])
def test_what_watches_and_measures_a_run_changes_no_bit_of_it(tf, tmp_path, name):
  training.train(tmp_path / "plain", name, "train.log_interval_steps=100")
  training.train(
    tmp_path / "watched",
    name,
    "train.log_interval_steps=1",
    "train.loss_spike=1e6",
    "train.step_timeout_secs=600",
    "train.save_interval_steps=1",
  )
  plain, watched = (training.newest(tmp_path / n) for n in ("plain", "watched"))
  assert LOSSES not in plain.arrays
  watched.arrays.pop(LOSSES)
  assert not training.differences(watched, plain)
