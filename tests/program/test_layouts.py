"""A checkpoint knows no layout: every entry finds its variable for any pair of K."""

import itertools
import zlib

import numpy as np
import pytest

from tests.program import training
from tests.program.training import IMAGE, TEXT
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.structure import static_shape

PARTITIONS = (1, 2, 3, 4)


@pytest.fixture(scope="module", params=[IMAGE, TEXT])
def runs(tf, request):
  """A run of the same model for every number of partitions."""
  return {
    k: training.make_run(request.param, f"pipeline.num_partitions={k}")
    for k in PARTITIONS
  }


def mark(run, source):
  """Gives every variable numbers that tell its name and the run they come from."""
  for name, variable in run.state().items():
    size = int(np.prod(static_shape(variable)))
    numbers = source * 1000 + zlib.crc32(name.encode()) % 900 + np.arange(size) / 512
    variable.assign(numbers.reshape(static_shape(variable)).astype(variable.dtype.name))


@pytest.mark.parametrize(("source", "target"), itertools.permutations(PARTITIONS, 2))
def test_marked_weights_slots_and_averages_arrive_by_name(
  runs, tmp_path, source, target
):
  mark(runs[source], source)
  mark(runs[target], target)
  checkpoint_lib.save(tmp_path, runs[source].checkpoint(), keep=1)
  saved = training.newest(tmp_path)
  runs[target].restore(saved)
  assert training.differences(runs[target].checkpoint(), saved) == []
  first = next(iter(runs[target].pipeline.weights.values())).numpy()
  assert (first // 1000 == source).all()


def test_plain_code_reads_a_checkpoint_without_tfpipe(runs, tmp_path):
  mark(runs[3], 3)
  path = checkpoint_lib.save(tmp_path, runs[3].checkpoint(), keep=1)
  with np.load(path) as file:
    for name, variable in runs[3].pipeline.weights.items():
      np.testing.assert_array_equal(file[f"weights/{name}"], variable.numpy())
