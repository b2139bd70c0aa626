import numpy as np
import pytest

from tests.program import events
from tfpipe.program.event_file import EventFile


def test_scalars_are_points_of_their_tags(tf, tmp_path):
  file = EventFile(tmp_path / "train")
  file.scalars(3, {"loss": 0.5, "pipeline/bubble": 0.25})
  file.scalars(2**40, {"loss": float("nan")})
  first, *_ = events.read(tmp_path / "train")
  assert first.file_version == "brain.Event:2"
  found = events.scalars(tmp_path / "train")
  assert found["pipeline/bubble"] == [(3, 0.25)]
  assert [step for step, _ in found["loss"]] == [3, 2**40]
  assert found["loss"][0] == (3, 0.5)
  assert np.isnan(found["loss"][1][1])


def test_a_start_voids_what_an_earlier_one_had_from_its_step_on(tf, tmp_path):
  EventFile(tmp_path).start(7)
  event = events.read(tmp_path)[1]
  assert event.step == 7
  assert event.session_log.status == tf.compat.v1.SessionLog.START


def test_an_event_is_in_the_file_as_soon_as_it_is_written(tf, tmp_path):
  file = EventFile(tmp_path)
  for step in range(3):
    file.scalars(step, {"loss": 1.0})
    assert len(events.read(tmp_path)) == 2 + step


def test_nothing_is_made_until_there_is_something_to_write(tf, tmp_path):
  EventFile(tmp_path / "eval")
  assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_an_error_of_the_system(tf, tmp_path, monkeypatch):
  file = EventFile(tmp_path)
  file.scalars(1, {"loss": 1.0})

  def full(record):
    raise tf.errors.ResourceExhaustedError(None, None, "no space left on device")

  monkeypatch.setattr(file._writer, "write", full, raising=False)
  with pytest.raises(OSError, match=f"{tmp_path}: no space left on device"):
    file.scalars(2, {"loss": 1.0})


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tf, tmp_path):
  (tmp_path / "train").write_text("a file")
  with pytest.raises(OSError, match="train"):
    EventFile(tmp_path / "train").scalars(1, {"loss": 1.0})


def test_two_files_of_one_folder_have_names_of_their_own(tf, tmp_path):
  for step in (1, 2):
    EventFile(tmp_path).scalars(step, {"loss": 0.0})
  assert len(list(tmp_path.iterdir())) == 2
  assert events.scalars(tmp_path)["loss"] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_are_png(tf, tmp_path, channels):
  images = np.arange(2 * 5 * 4 * channels, dtype=np.uint8).reshape(2, 5, 4, channels)
  EventFile(tmp_path).images(1, "input/image", images)
  found = events.values(tmp_path, "input/image/image/")
  assert [value.tag[-1] for value in found] == ["0", "1"]
  for value, image in zip(found, images, strict=True):
    picture = value.image
    assert (picture.height, picture.width, picture.colorspace) == (5, 4, channels)
    png = tf.io.decode_png(picture.encoded_image_string).numpy()
    np.testing.assert_array_equal(png, image)


def test_texts_are_tensors_of_the_plugin_for_texts(tf, tmp_path):
  EventFile(tmp_path).texts(1, "input/ids", ["a & b", "ä"])
  (value,) = events.values(tmp_path, "input/ids")
  assert value.metadata.plugin_data.plugin_name == "text"
  assert tf.make_ndarray(value.tensor).tolist() == [b"a & b", "ä".encode()]


def test_hparams_are_encoded_as_the_plugin_reads_them(tf, tmp_path):
  EventFile(tmp_path).hparams({"a": 1})
  (value,) = events.values(tmp_path, "_hparams_/session_start_info")
  assert value.metadata.plugin_data.plugin_name == "hparams"
  # By hand, from Protocol Buffers' encoding: 8·field + wire type, length, content.
  number = b"\x11" + np.float64(1.0).tobytes()  # Value.number_value = 2
  entry = b"\x0a\x01a" + b"\x12\x09" + number  # key = 1, value = 2
  session = b"\x0a\x0e" + entry  # SessionStartInfo.hparams = 1
  # HParamsPluginData.session_start_info = 3
  assert value.metadata.plugin_data.content == b"\x1a\x10" + session


def test_long_hparams_have_a_length_of_more_than_one_byte(tf, tmp_path):
  EventFile(tmp_path).hparams({"a": "g" * 300})
  (value,) = events.values(tmp_path, "_hparams_/")
  content = value.metadata.plugin_data.content
  # 300 = 2·128 + 44; each message around it has 3 bytes of its own, the entry 3 more.
  assert content.endswith(b"\x1a\xac\x02" + b"g" * 300)
  assert content.startswith(b"\x1a\xb8\x02" + b"\x0a\xb5\x02" + b"\x0a\x01a")
  assert len(content) == 3 + 2 * 128 + 0x38


def test_tensorboard_itself_reads_the_hparams(tf, tmp_path):
  hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata")
  values = {"rate": 0.5, "seed": 3, "flag": True, "schedule": "1f1b"}
  EventFile(tmp_path).hparams(values)
  (value,) = events.values(tmp_path, "_hparams_/session_start_info")
  content = value.metadata.plugin_data.content
  found = hparams.parse_session_start_info_plugin_data(content)
  assert {n: getattr(v, v.WhichOneof("kind")) for n, v in found.hparams.items()} == (
    values
  )
