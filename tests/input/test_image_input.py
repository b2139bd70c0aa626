"""Image inputs: shapes, identity of the examples, options."""

import numpy as np
import pytest

from tfpipe.input import embedded
from tfpipe.input.image_input import EmbeddedImageInput, SyntheticImageInput

AUGMENTED = {"random_crop_padding": 4, "random_flip": True, "cutout": 8}


def embedded_input(**changes):
  return EmbeddedImageInput.Params().Set(**{"batch_size": 50, **changes}).Instantiate()


def synthetic(**changes):
  settings = {"batch_size": 4, "num_examples": 11, "image_size": 9, **changes}
  return SyntheticImageInput.Params().Set(**settings).Instantiate()


def first(source, start=0):
  return next(iter(source.dataset(start).take(1).as_numpy_iterator()))


def test_specs_are_those_of_the_batches(tf):
  for source in (embedded_input(image_size=32, channels=3), synthetic(channels=3)):
    specs, spec = source.specs(), source.dataset().element_spec
    assert sorted(specs) == sorted(spec) == ["image", "label", "weight"]
    for key, value in specs.items():
      assert tuple(spec[key].shape) == value.shape
      assert spec[key].dtype.name == value.dtype


def test_evaluation_reads_every_test_image_once_in_order(tf):
  p = EmbeddedImageInput.EvalParams().Set(batch_size=64)
  batches = list(p.Instantiate().dataset().as_numpy_iterator())
  assert len(batches) == 8
  weight = np.concatenate([b["weight"] for b in batches])
  assert weight.tolist() == [1] * 500 + [0] * 12
  pixels, labels = embedded.fashion_mnist("test")
  images = np.concatenate([b["image"] for b in batches])[:500, :, :, 0]
  np.testing.assert_allclose(images, pixels / 255 * 2 - 1, atol=1e-6)
  np.testing.assert_array_equal(
    np.concatenate([b["label"] for b in batches])[:500], labels
  )


def test_training_shows_every_image_with_its_label_once_an_epoch(tf):
  source = embedded_input(mean=0.0, std=1.0)
  pixels, labels = embedded.fashion_mnist("train")
  number = {image.tobytes(): i for i, image in enumerate(pixels)}
  seen = []
  for batch in source.dataset().take(source.steps_per_epoch).as_numpy_iterator():
    images = np.rint(batch["image"][..., 0] * 255).astype(np.uint8)
    ids = [number[image.tobytes()] for image in images]
    np.testing.assert_array_equal(batch["label"], labels[ids])
    seen += ids
  assert sorted(seen) == list(range(2000))


def test_padding_to_a_larger_side_puts_black_around(tf):
  p = {"shuffle": False, "mean": 0.0, "std": 1.0}
  small = first(embedded_input(**p))["image"]
  large = first(embedded_input(image_size=32, fit="pad", **p))["image"]
  np.testing.assert_array_equal(large[:, 2:30, 2:30], small)
  assert large.sum() == small.sum()


def test_three_channels_are_equal(tf):
  image = first(embedded_input(channels=3))["image"]
  np.testing.assert_array_equal(image[..., 0], image[..., 1])
  np.testing.assert_array_equal(image[..., 0], image[..., 2])


@pytest.mark.parametrize("start", [1, 39, 40, 57])
def test_augmented_batches_resume_exactly(tf, start):
  source = embedded_input(**AUGMENTED)
  whole = list(source.dataset().take(start + 2).as_numpy_iterator())
  tf.random.set_seed(start)
  resumed = list(source.dataset(start).take(2).as_numpy_iterator())
  for a, b in zip(whole[start:], resumed, strict=True):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def test_augmentation_of_an_image_changes_from_epoch_to_epoch(tf):
  # One image that fills the set: only augmentation can tell its epochs apart.
  source = embedded_input(batch_size=2000, **AUGMENTED)
  pixels = embedded.fashion_mnist("train")[0]
  plain = embedded_input(batch_size=2000)
  pictures = []
  for step in range(2):
    order = first(plain, step)["image"][..., 0]
    ids = {
      im.tobytes(): k
      for k, im in enumerate(np.rint((order + 1) * 127.5).astype(np.uint8))
    }
    pictures.append(first(source, step)["image"][ids[pixels[0].tobytes()]])
  assert not np.array_equal(*pictures)


@pytest.mark.parametrize(
  ("option", "value"),
  [
    ("random_crop_padding", 4),
    ("random_flip", True),
    ("cutout", 8),
    ("random_resized_crop", True),
    ("color_jitter", True),
    ("central_crop", 0.5),
    ("mean", 0.1),
    ("std", 0.1),
  ],
)
def test_each_option_changes_the_images(tf, option, value):
  plain = first(embedded_input(channels=3))["image"]
  changed = first(embedded_input(channels=3, **{option: value}))["image"]
  assert plain.shape == changed.shape
  assert not np.array_equal(plain, changed)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"split": "tset"}, r"split = 'tset': .* 'train', 'test'; did you mean 'test'\?"),
    ({"channels": 2}, r"channels = 2: it must be one of 1, 3"),
    ({"image_size": 0}, r"image_size = 0: it must be an integer of at least 1"),
    ({"image_size": 27, "fit": "pad"}, r"image_size = 27 is less than the 28 pixels"),
    ({"fit": "padding"}, r"fit = 'padding': it must be one of 'resize', 'pad'"),
    ({"std": 0.0}, r"std = 0\.0: it must be a number in \(0, inf\)"),
    ({"mean": float("nan")}, r"mean = nan: it must be a number in \(-inf, inf\)"),
    ({"central_crop": 1.5}, r"central_crop = 1\.5: it must be a number in \(0, 1\]"),
    ({"random_flip": 1}, r"random_flip = 1: it must be True or False"),
    ({"cutout": 29}, r"cutout = 29: it must be an integer .* at most 28"),
    ({"random_crop_padding": 28}, r"random_crop_padding = 28: .* at most 27"),
    ({"color_jitter": True}, r"color_jitter needs channels = 3; got 1"),
    ({"random_flip": True, "shuffle": False}, r"random_flip .* shuffle is False"),
    ({"random_resized_crop": True, "fit": "pad"}, r"replaces .* \(here 'pad'\)"),
    ({"random_resized_crop": True, "central_crop": 0.9}, r"replaces .* \(here 0.9\)"),
  ],
)
def test_bad_options_are_refused(changes, words):
  with pytest.raises((TypeError, ValueError), match=words):
    embedded_input(**changes)


def test_synthetic_images_are_distinct_and_a_function_of_the_seed(tf):
  def epoch(**changes):
    source = synthetic(last_batch="pad", repeat=False, **changes)
    return list(source.dataset().as_numpy_iterator())

  first_run, second_run, other = epoch(), epoch(), epoch(seed=1)
  images = [
    im.tobytes()
    for b in first_run
    for im, w in zip(b["image"], b["weight"], strict=True)
    if w
  ]
  assert len(set(images)) == 11
  np.testing.assert_array_equal(first_run[0]["image"], second_run[0]["image"])
  assert not np.array_equal(first_run[0]["image"], other[0]["image"])
  assert not np.array_equal(first_run[0]["image"], epoch(split="test")[0]["image"])


def test_synthetic_labels_stay_below_num_classes(tf):
  source = synthetic(num_classes=3, num_examples=500, batch_size=500)
  assert set(first(source)["label"]) == {0, 1, 2}
  assert source.num_classes == 3
