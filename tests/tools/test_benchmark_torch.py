"""PyTorch's networks are those that tfpipe is compared with."""

import pytest

from params.image.benchmark import AmoebaNetD18x64
from tests.tools.commands import params_of
from tfpipe.network import Network
from tools.benchmark_peers import SIZES

torch = pytest.importorskip("torch", reason="PyTorch is no dependency of tfpipe")


def _weights(layer):
  return sum(weight.numel() for weight in layer.parameters())


@pytest.fixture(scope="module")
def networks():
  from tools import benchmark_torch, benchmark_torch_amoebanet

  return benchmark_torch, benchmark_torch_amoebanet


def test_each_layer_of_the_amoebanet_has_as_many_weights_and_the_same_outputs(networks):
  _, amoebanet = networks
  costs = Network(AmoebaNetD18x64().Model()).costs(8)
  made = amoebanet.layers(18, 64)
  x = torch.zeros(2, 1, 64, 64)
  for layer, cost in zip(made, costs, strict=True):
    assert _weights(layer) == cost.param_count, cost.name
    x = layer(x)
    if cost.name.startswith(("stem_cell", "cell", "reduction")):
      shapes = [(n, h, w, c) for n, c, h, w in (y.shape for y in x)]
      assert shapes == [spec.shape for spec in cost.out_shapes], cost.name
  assert x.shape == (2, 10)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_transformers_have_as_many_weights(networks, sizes):
  transformer, _ = networks
  costs = Network(params_of(sizes.ours("gpipe"))).costs(8)
  made = transformer.layers(sizes.dim, sizes.layers, sizes.vocab)
  ours = [cost.param_count for cost in costs]
  # The head is a norm and a product, which are two layers here.
  assert [_weights(layer) for layer in made] == [*ours[:-2], ours[-2] + ours[-1]]
