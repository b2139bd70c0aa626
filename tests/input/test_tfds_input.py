"""Images from prepared tfds folders: stand-ins written under the real names."""

import socket
import subprocess
import sys

import numpy as np
import pytest

from tfpipe.input import tfds_input
from tfpipe.input.tfds_input import TfdsImageInput, find_prepared

SIZES = {"train": 53, "test": 11}
SHARDS = 4


def picture(number):
  """Gives noise that tells its number: lossless, since CIFAR-10 is stored as PNG."""
  image = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
  image[0, 0, 0] = number
  return image


def write(data_dir, name, *, version="3.0.2", sizes=None, features=None):
  """Writes a small dataset in tfds layout under any name."""
  import tensorflow_datasets as tfds

  class StandIn(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version(version)

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(
          features
          or {
            "image": tfds.features.Image(shape=(32, 32, 3)),
            "label": tfds.features.ClassLabel(num_classes=10),
          }
        ),
      )

    def _split_generators(self, dl_manager):
      return {
        split: self._generate_examples(size) for split, size in (sizes or SIZES).items()
      }

    def _generate_examples(self, size):
      for i in range(size):
        values = {"image": picture(i), "label": i % 10}
        yield i, {key: values[key] for key in self.info.features}

  StandIn.name = name
  StandIn.pkg_dir_path = data_dir
  config = tfds.download.DownloadConfig(num_shards=SHARDS)
  StandIn(data_dir=str(data_dir)).download_and_prepare(download_config=config)


@pytest.fixture(scope="session")
def data_dir(tf, tmp_path_factory):
  """A folder with a prepared 'cifar10' of 53 and 11 examples in 4 files each."""
  folder = tmp_path_factory.mktemp("tfds")
  write(folder, "cifar10")
  return str(folder)


def make(data_dir, **changes):
  p = TfdsImageInput.Params().Set(
    dataset="cifar10",
    data_dir=data_dir,
    num_classes=10,
    batch_size=5,
    image_size=32,
    channels=3,
    mean=0.0,
    std=1.0,
    shuffle_block=16,
  )
  return p.Set(**changes).Instantiate()


def run(source, start=0, count=None):
  batches = source.dataset(start)
  return list((batches if count is None else batches.take(count)).as_numpy_iterator())


def real_ids(batches):
  ids = []
  for batch in batches:
    for image, label, weight in zip(
      batch["image"], batch["label"], batch["weight"], strict=True
    ):
      if weight:
        ids.append(round(float(image[0, 0, 0]) * 255))
        assert label == ids[-1] % 10
  return ids


def assert_same(left, right):
  assert len(left) == len(right)
  for a, b in zip(left, right, strict=True):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def test_specs_are_those_of_the_batches(data_dir):
  source = make(data_dir)
  spec = source.dataset().element_spec
  for key, value in source.specs().items():
    assert tuple(spec[key].shape) == value.shape
    assert spec[key].dtype.name == value.dtype


def test_evaluation_reads_a_prime_split_once_and_whole(data_dir):
  evaluation = {"split": "test", "shuffle": False, "repeat": False, "last_batch": "pad"}
  batches = run(make(data_dir, **evaluation))
  assert len(batches) == 3
  assert sorted(real_ids(batches)) == list(range(11))
  assert sum(b["weight"].sum() for b in batches) == 11
  for image in batches[0]["image"]:
    number = round(float(image[0, 0, 0]) * 255)
    np.testing.assert_allclose(image, picture(number) / 255, atol=1e-6)


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_training_shows_each_example_at_most_once_an_epoch(data_dir, last_batch):
  source = make(data_dir, last_batch=last_batch)
  steps = source.steps_per_epoch
  assert steps == {"drop": 10, "pad": 11}[last_batch]
  batches = run(source, 0, 3 * steps)
  orders = []
  for epoch in range(3):
    ids = real_ids(batches[epoch * steps : (epoch + 1) * steps])
    assert len(ids) == len(set(ids)) == {"drop": 50, "pad": 53}[last_batch]
    orders.append(ids)
  assert orders[0] != orders[1] != orders[2]


def test_the_order_mixes_files_and_blocks(data_dir):
  ids = np.array(real_ids(run(make(data_dir), 0, 10)))
  plain = real_ids(run(make(data_dir, shuffle=False), 0, 10))
  assert ids.tolist() != plain
  # Neighbours of the stored order stay neighbours about once in 25 at random.
  place = {number: i for i, number in enumerate(plain)}
  steps = np.diff([place[i] for i in ids if i in place])
  assert (np.abs(steps) == 1).mean() < 0.3


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
@pytest.mark.parametrize("start", [1, 9, 10, 11, 26])
def test_a_resumed_run_sees_the_batches_of_an_uninterrupted_one(
  tf, data_dir, start, last_batch
):
  source = make(data_dir, last_batch=last_batch, random_flip=True, color_jitter=True)
  tf.random.set_seed(1)
  whole = run(source, 0, start + 3)
  tf.random.set_seed(2)
  again = make(data_dir, last_batch=last_batch, random_flip=True, color_jitter=True)
  assert_same(run(again, start, 3), whole[start:])


@pytest.mark.parametrize("at_once", [1, 3])
def test_groups_of_files_resume_exactly(data_dir, monkeypatch, at_once):
  monkeypatch.setattr(tfds_input, "FILES_AT_ONCE", at_once)
  source = make(data_dir, last_batch="pad", shuffle_block=8)
  whole = run(source, 0, 15)
  assert sorted(real_ids(whole[:11])) == list(range(53))
  for start in (2, 6, 10, 12):
    assert_same(run(source, start, 3), whole[start : start + 3])


def test_resuming_late_opens_no_file_that_is_passed(tf, data_dir, tmp_path):
  folder = find_prepared(data_dir, "cifar10")
  copy = tmp_path / "cifar10" / folder.name
  copy.mkdir(parents=True)
  for path in folder.iterdir():
    (copy / path.name).write_bytes(path.read_bytes())
  files = sorted(copy.glob("*train*"))
  # Of four files of 13 or 14 records the last one begins with record 39, 40 or 41.
  for path in files[1:3]:
    path.write_bytes(b"no record" * 9)
  expected = run(make(data_dir, shuffle=False), 10**6 + 9, 1)
  assert_same(run(make(str(tmp_path), shuffle=False), 10**6 + 9, 1), expected)
  with pytest.raises(tf.errors.DataLossError):
    run(make(str(tmp_path), shuffle=False), 10**6 + 5, 1)


def test_without_repeat_the_data_ends_after_an_epoch(data_dir):
  source = make(data_dir, repeat=False)
  assert len(run(source)) == 10
  assert len(run(source, 8)) == 2
  assert run(source, 10) == []


def test_a_slice_of_a_split_has_its_own_examples(data_dir):
  last = {"last_batch": "pad", "repeat": False}
  head = make(data_dir, split="train[:50%]", **last)
  tail = make(data_dir, split="train[50%:]", **last)
  assert head.num_examples + tail.num_examples == 53
  ids = real_ids(run(head)) + real_ids(run(tail))
  assert sorted(ids) == list(range(53))


def test_the_imagenet_preprocessing_runs_for_training_and_evaluation(data_dir):
  train = make(
    data_dir,
    image_size=24,
    mean=0.5,
    std=0.5,
    random_resized_crop=True,
    random_flip=True,
    color_jitter=True,
  )
  evaluation = make(
    data_dir, image_size=24, split="test", shuffle=False, central_crop=0.875
  )
  for source, low in ((train, -1.0), (evaluation, 0.0)):
    image = run(source, 0, 1)[0]["image"]
    assert image.shape == (5, 24, 24, 3)
    assert low <= image.min() < image.max() <= 1.0


def test_the_central_crop_of_evaluation_is_the_middle(data_dir):
  source = make(data_dir, image_size=28, shuffle=False, central_crop=0.875)
  plain = make(data_dir, shuffle=False)
  np.testing.assert_allclose(
    run(source, 0, 1)[0]["image"],
    run(plain, 0, 1)[0]["image"][:, 2:30, 2:30],
    atol=1e-6,
  )


def test_missing_data_is_named_with_the_folder_and_the_command(tmp_path, monkeypatch):
  def refuse(*_):
    raise AssertionError("asked the network")

  monkeypatch.setattr(socket, "getaddrinfo", refuse)
  words = {
    "fashion_mnist": r"prepare_data --dataset=fashion_mnist .* --source=auto",
    "cifar10": r"prepare_data --dataset=cifar10 .* --allow_download",
    "imagenet2012": r"prepare_data --dataset=imagenet2012 .* --manual_dir=",
    "caltech101": r"tfds build caltech101 --data_dir=",
  }
  for dataset, command in words.items():
    source = make(str(tmp_path), dataset=dataset)
    with pytest.raises(
      LookupError, match=f"'{dataset}' is not in {tmp_path}.*{command}"
    ):
      source.dataset()


@pytest.mark.parametrize(
  ("dataset", "message"),
  [
    (
      "imagenet2011",
      r"and tfds knows no 'imagenet2011'; did you mean 'imagenet2012'\?$",
    ),
    ("Cifar10", r"and tfds knows no 'Cifar10'; did you mean 'cifar10'\?$"),
    ("my_bird", r"and tfds knows no 'my_bird'; did you mean 'my_birds'\?$"),
    ("zzzzqq/1.0.0", r"and tfds knows no 'zzzzqq'$"),
    (
      "imagenet_resized/64x65",
      r"and imagenet_resized has no configuration '64x65'; did you mean '64x64'\?$",
    ),
    (
      "imagenet_resized/huge",
      r"and .* no configuration 'huge'; known: 16x16, 32x32, 64x64, 8x8$",
    ),
    (
      "imagenet_resized/64x64/0.1.0",
      "prepare it with tfds build imagenet_resized/64x64",
    ),
    ("cifar10/9.9.9", r"prepare it with tfds build cifar10/9\.9\.9 --data_dir="),
    ("my_birds/1.8.0", r"which has my_birds/1\.10\.0, my_birds/1\.9\.0$"),
    ("my_birds/small", r"which has my_birds/1\.10\.0, my_birds/1\.9\.0$"),
  ],
)
def test_a_name_that_nothing_has_gets_the_nearest(tmp_path, dataset, message):
  for version in ("1.9.0", "1.10.0"):
    (tmp_path / "my_birds" / version).mkdir(parents=True)
    (tmp_path / "my_birds" / version / "features.json").touch()
  start = f"^TfdsImageInput.dataset = '{dataset}' is not in {tmp_path}[,;] .*"
  with pytest.raises(LookupError, match=start + message):
    make(str(tmp_path), dataset=dataset).check_data()


def test_data_is_looked_for_without_a_device(data_dir):
  program = f"""
from tensorflow.python.eager import context
from tests.input.test_tfds_input import make
make({data_dir!r}).check_data()
assert not context.context()._initialized
"""
  subprocess.run([sys.executable, "-c", program], check=True)


def test_files_that_are_not_there_are_missing_data(tf, tmp_path):
  write(tmp_path, "cifar10")
  source = make(str(tmp_path))
  source.check_data()
  paths = sorted((tmp_path / "cifar10" / "3.0.2").glob("*train*"))
  assert len(paths) == SHARDS
  for path in paths[1:3]:
    path.unlink()
  with pytest.raises(
    LookupError,
    match=rf"^2 of the 4 files of cifar10, split 'train', .* is {paths[1]}$",
  ):
    make(str(tmp_path)).check_data()
  make(str(tmp_path), split="test").check_data()


def test_the_newest_version_is_read_unless_one_is_named(tmp_path):
  for version in ("1.9.0", "1.10.0", "notes"):
    (tmp_path / "birds" / version).mkdir(parents=True)
  for version in ("1.9.0", "1.10.0"):
    (tmp_path / "birds" / version / "features.json").touch()
  assert find_prepared(str(tmp_path), "birds").name == "1.10.0"
  assert find_prepared(str(tmp_path), "birds/1.9.0").name == "1.9.0"
  assert find_prepared(str(tmp_path), "birds/1.8.0") is None


def test_a_split_that_is_not_there_is_named(data_dir):
  with pytest.raises(
    ValueError, match=r"'validation' is not in cifar10, which has .*te"
  ):
    _ = make(data_dir, split="validation").num_examples


def test_another_number_of_classes_is_refused(data_dir):
  with pytest.raises(
    ValueError, match=r"num_classes = 100, but .*cifar10.* 10 classes"
  ):
    _ = make(data_dir, num_classes=100).num_examples


def test_a_dataset_without_labels_is_refused(tf, tmp_path):
  import tensorflow_datasets as tfds

  image = {"image": tfds.features.Image(shape=(32, 32, 3))}
  write(tmp_path, "pictures", version="1.0.0", sizes={"train": SHARDS}, features=image)
  with pytest.raises(
    ValueError, match=r"pictures.* has no feature label; it has image"
  ):
    _ = make(str(tmp_path), dataset="pictures").num_examples


def test_a_folder_with_lost_records_stops_the_run(tf, data_dir, tmp_path):
  folder = find_prepared(data_dir, "cifar10")
  copy = tmp_path / "cifar10" / folder.name
  copy.mkdir(parents=True)
  for path in folder.iterdir():
    (copy / path.name).write_bytes(path.read_bytes())
  emptied = sorted(copy.glob("*train*"))[1]
  emptied.write_bytes(b"")
  source = make(str(tmp_path), last_batch="pad", shuffle=False)
  with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 55"):
    run(source, 0, 12)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"dataset": ""}, r"TfdsImageInput.dataset must be set"),
    ({"num_classes": 0}, r"num_classes = 0: it must be an integer of at least 1"),
    ({"shuffle_block": 0}, r"shuffle_block = 0: it must be an integer of at least 1"),
    ({"data_dir": None}, r"data_dir = None: it must be a string"),
  ],
)
def test_bad_options_are_refused(changes, words):
  with pytest.raises((TypeError, ValueError), match=words):
    make(**{"data_dir": "anywhere", **changes})
