"""Holds AmoebaNet's structure and costs to the golden figures."""

import re
import subprocess
import sys

import pytest

from models.amoebanet.genotype import GENOTYPES
from models.amoebanet.network import AmoebaNet
from tests.models import amoebanet_tables as tables
from tests.models.network_costs import network_costs
from tfpipe import partition
from tfpipe.cost import ArraySpec


def costs(genotype, num_cells, num_filters, image=224, **settings):
  task = AmoebaNet.Params().Set(
    genotype=f"amoebanet_{genotype}",
    num_cells=num_cells,
    num_filters=num_filters,
    image_size=image,
    **settings,
  )
  return network_costs(task.Instantiate(), [ArraySpec((1, image, image, 3))])


def norm_params(task):
  """Counts gamma and beta of every layer, by name."""
  found = {}
  for params in task.Layers():
    weights = params.Instantiate().weights().items()
    shapes = [w.shape for path, w in weights if path.endswith(("gamma", "beta"))]
    found[params.name] = sum(shape[0] for shape in shapes)
  return found


CASES = [
  ("b", 512, image, tables.B_18_512, tables.B_18_512_GMAC[image])
  for image in (224, 331, 480)
] + [("d", 256, 224, tables.D_18_256, tables.D_18_256_GMAC[224])]
by_case = pytest.mark.parametrize(
  ("genotype", "filters", "image", "rows", "gmac"),
  CASES,
  ids=[f"{case[0]}-{case[2]}" for case in CASES],
)


@by_case
def test_every_layer_has_the_parameters_sides_and_multiply_adds_of_the_table(
  genotype, filters, image, rows, gmac
):
  found = costs(genotype, 18, filters, image)
  assert [cost.name for cost in found] == [row.name for row in rows]
  for cost, row in zip(found, rows, strict=True):
    side, row_gmac = row.maps[image]
    assert cost.param_count == row.params, row.name
    assert f"{cost.matmul_flops / 2e9:.3f}" == row_gmac, row.name
    if row.name != "classifier":
      out = cost.out_shapes
      spec = out if row.name == "stem_conv" else out[0]
      assert spec.shape == (1, side, side, row.channels), row.name
  assert f"{sum(cost.matmul_flops for cost in found) / 2e9:.2f}" == gmac


@pytest.mark.parametrize(
  ("genotype", "filters", "rows"),
  [("b", 512, tables.B_18_512), ("d", 256, tables.D_18_256)],
)
def test_batch_norms_have_their_share_of_the_parameters(genotype, filters, rows):
  task = AmoebaNet.Params().Set(genotype=f"amoebanet_{genotype}", num_filters=filters)
  found = norm_params(task.Instantiate())
  assert found == {row.name: row.norm_params for row in rows}


@pytest.mark.parametrize(
  "count", tables.COUNTS, ids=lambda c: "-".join(map(str, c[:3]))
)
def test_networks_have_the_published_number_of_parameters(count):
  plain = costs(*count[:3])
  assert sum(cost.param_count for cost in plain) == count.plain
  if count.with_aux is not None:
    aux = costs(*count[:3], num_classes=1001, aux_head=True)
    assert sum(cost.param_count for cost in aux) == count.with_aux


@pytest.mark.parametrize("split", tables.SPLITS, ids=lambda s: f"{s[0]}-{len(s[3])}")
def test_the_best_split_by_multiply_adds_is_that_of_the_table(split):
  found = costs(split.genotype, 18, split.num_filters, split.image)
  flops = [cost.matmul_flops for cost in found]
  cells = partition.balance(flops, len(split.sizes))
  assert tuple(end - start for start, end in cells) == split.sizes
  largest = max(sum(flops[start:end]) for start, end in cells)
  assert f"{largest * len(cells) / sum(flops):.3f}" == split.largest_over_mean
  sent = [found[end - 1].border_bytes / 4e6 for _, end in cells[:-1]]
  assert tuple(f"{elements:.2f}" for elements in sent) == split.sent


def test_sides_at_299_pixels():
  found = costs("a", 6, 192, 299)
  sides = [cost.out_shapes[0].shape[1] for cost in found[1:-1]]
  assert found[0].out_shapes.shape[1] == 149
  assert sides == [75, 38, 38, 38, 19, 19, 19, 10, 10, 10]


@pytest.mark.parametrize(("image", "gmac"), [(299, "103.9"), (331, "126.5")])
def test_the_large_a_has_the_size_of_its_paper(image, gmac):
  # Real et al.: AmoebaNet-A (N = 6, F = 448) has 469M parameters, 104B multiply-adds.
  found = costs("a", 3 * 6, 448, image)
  assert f"{sum(cost.param_count for cost in found) / 1e6:.2f}" == "468.15"
  assert f"{sum(cost.matmul_flops for cost in found) / 2e9:.1f}" == gmac


@pytest.mark.parametrize(("genotype", "kind"), tables.WIRING)
def test_genotypes_are_those_of_the_tables(genotype, kind):
  wiring = getattr(GENOTYPES[f"amoebanet_{genotype}"], kind)
  *pairs, concat = tables.WIRING[genotype, kind].strip().splitlines()
  found = [" + ".join(f"{op.name}({op.state})" for op in pair) for pair in wiring.pairs]
  assert found == [re.sub(" +", " ", pair.strip()) for pair in pairs]
  assert wiring.concat == tuple(map(int, concat.split()))


def test_costs_of_the_largest_network_need_no_tensorflow():
  code = (
    "import sys\n"
    "from tests.models.test_amoebanet_tables import costs\n"
    "costs('b', 18, 512)\n"
    "print('tensorflow' in sys.modules)"
  )
  run = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert run.stdout == "False\n"
