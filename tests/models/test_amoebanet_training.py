"""AmoebaNet through the pipeline: the cut and the schedule change nothing."""

import numpy as np

from models.amoebanet.network import AmoebaNet
from tests.pipeline import harness
from tests.pipeline.networks import Network

BATCH, SIDE = 8, 12


def batches(count):
  """Makes pictures of one bright quarter; which one is the label."""
  rng = np.random.default_rng(0)
  found = []
  for _ in range(count):
    label = rng.integers(0, 4, BATCH).astype(np.int32)
    image = rng.normal(size=(BATCH, SIDE, SIDE, 1)).astype(np.float32)
    for i, quarter in enumerate(label):
      top, left = 6 * (quarter // 2), 6 * (quarter % 2)
      image[i, top : top + 6, left : left + 6] += 3
    found.append({"image": image, "label": label, "weight": np.ones(BATCH, np.float32)})
  return found


def network(**settings):
  task = AmoebaNet.Params().Set(
    num_cells=3,
    num_filters=4,
    num_classes=4,
    image_size=SIDE,
    channels=1,
    stem="small",
    stem_filters=8,
  )
  task.Set(**settings)
  return Network(lambda: task.Instantiate().Layers(), ("image",), batches)


def test_an_aux_head_in_the_middle_changes_nothing_about_cuts(tf):
  net = network(genotype="amoebanet_b", aux_head=True)
  expected, losses = harness.train(tf, net, 1, num_micro_batches=2)
  assert np.isfinite(losses).all()
  found, _ = harness.train(
    tf, net, 1, num_partitions=3, num_micro_batches=2, name="1f1b", remat="cell"
  )
  assert harness.differences(found, expected) == []
  (cell,) = (p for p in net.layers() if p.name == "cell_1")
  weight = cell.Instantiate().weights()["aux_head/logits/w"]
  name = "cell_1/aux_head/logits/w"
  start = weight.init.values(name, weight.shape, harness.SEED)
  assert not np.array_equal(found[name], start)


def test_a_small_network_learns(tf):
  net = network(dropout_keep=1.0, label_smoothing=0.0)
  _, losses = harness.train(tf, net, 80)
  assert np.mean(losses[-10:]) < 0.25 * np.log(4)  # guessing loses log(4)
