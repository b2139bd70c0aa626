"""Bad files, and what the message of each must say: file, place, what is expected."""

from __future__ import annotations

import json

from tests.program.training import IMAGE
from tfpipe import schedule
from tfpipe.schedule import text

CHAR = "lm.shakespeare.Char"
PLAN = "--mode=plan"
CSV = text.to_csv(schedule.make("1f1b", 2, 2))
FIRST = "0,F,0,0,0,1,0"
# What is put in place of something in a good file, and the message.
CSV_ROWS = [
  ((CSV, ""), r"the line device,kind,stage,micro_batch,pipe,size,version is missing$"),
  (("num_stages,2", "num_stages,3"), r"placement\[0\] has 2 devices for 3 stages$"),
  (
    ("num_stages,2", "num_stages,two"),
    r"line 2: num_stages is 'two', expected a whole",
  ),
  (
    ("num_stages", "num_stage"),
    r"'num_stage' is not one of .*; did you mean 'num_stag",
  ),
  (
    ("num_micro_batches,2", "num_micro_batches,3"),
    r"num_micro_batches is 2, but the file's is 3$",
  ),
  (("exact,true", "exact,maybe"), r"exact is 'maybe', expected true or false$"),
  (("placement,0,1", "placement,0"), r"device is 1, but placement has 1 devices$"),
  (("placement,0,1", "placement,0,5"), r"placement has device 5, but only 2 stages in"),
  (("placement,0,1", "placement"), r"placement has no values, expected a device a sta"),
  ((FIRST, "0,X,0,0,0,1,0"), r"line 8: kind is 'X', not one of F, R, B, W, BW, U$"),
  ((f"{FIRST}\n", ""), r"there is no action F of stage 0, micro-batch 0$"),
  ((FIRST, f"{FIRST}\n{FIRST}"), r"F \(.*\) and again F \(.*\): expected one$"),
  ((FIRST, "0,F,0,7,0,1,0"), r"micro_batch is 7, expected 0 to 1$"),
  ((FIRST, "9,F,0,0,0,1,0"), r"line 8: device is 9, but placement has 2 devices$"),
  (
    (FIRST, "0,F,0,0,0,1"),
    r"line 8: 6 values, expected device, kind, stage, micro_bat",
  ),
  (
    (FIRST, "0,F,0,0,0,1,1"),
    r"F \(.*\) needs U \(.*\), which does not stand before it",
  ),
  (
    (FIRST, "1,F,0,0,0,1,0"),
    r"in the list of device 1, but its stage is placed on dev",
  ),
  ((FIRST, "0,F,-1,0,0,1,0"), r"line 8: stage is '-1', expected a whole number >= 0$"),
  (
    ("1,F,1,0,0,1,0\n1,BW,1,0,0,1,0", "1,BW,1,0,0,1,0\n1,F,1,0,0,1,0"),
    r"device 1: BW \(.*\) needs F \(.*\), which does not stand before it$",
  ),
  (
    ("num_versions,1", "num_versions,0"),
    r"num_versions is 0: expected a whole number ",
  ),
  (("name,1f1b", "name,1f1b\nname,b"), r"line 2: name is given twice$"),
]
JSON = json.loads(text.to_json(schedule.make("1f1b", 2, 2)))
# Fields of a good file that are changed.
JSON_ROWS = [
  ({"num_stages": "2"}, r"num_stages is '2', expected int$"),
  ({"exact": 1}, r"exact is 1, expected bool$"),
  ({"placement": [[0]]}, r"placement\[0\] has 1 devices for 2 stages$"),
  ({"placement": 3}, r"placement is 3, expected list$"),
  (
    {"actions": [[["F"]], []]},
    r"actions\[0\]\[0\]: 1 values, expected kind, stage, mi",
  ),
  (
    {"actions": [[["Q", 0, 0, 0, 1, 0]], []]},
    r"actions\[0\]\[0\]: kind is 'Q', not one of F, R, B, W, BW, U$",
  ),
  ({"color": 1}, r"field 'color' is not one of name, num_stages, .*, placement, actio"),
]
SECS = ("forward", "input_gradient", "weight_gradient", "update", "backward")
LAYERS = [
  {"name": name, **dict.fromkeys(SECS, 1)}
  for name in ("block_0", "block_1", "block_2", "block_3", "loss")
]
TIMES = {"device": "a CPU", "batch": 4, "layers": LAYERS, "end": 0}
_SECS = r"expected a finite number >= 0, at most 1e\+100$"


def _layers(**change: object) -> dict:
  return {"layers": [{**LAYERS[0], **change}, *LAYERS[1:]]}


TIMES_ROWS = [
  ({"batch": 0}, r"batch is 0: expected a whole number >= 1$"),
  ({"batch": "4"}, r"batch is '4': expected a whole number >= 1$"),
  ({"batch": True}, r"batch is True: expected a whole number >= 1$"),
  ({"device": 3}, r"device is 3: expected a text$"),
  ({"layers": []}, r"layers is empty: expected the times of at least one layer$"),
  ({"layers": {}}, r"layers is \{\}: expected a list$"),
  ({"layers": [3]}, r"layers\[0\] is 3: expected an object$"),
  ({"layers": LAYERS[:-1]}, r"the network's layer 'loss' has no times$"),
  ({"layers": [*LAYERS, LAYERS[0]]}, r"layer 'block_0' is there twice$"),
  (_layers(name="block_x"), r"layer 'block_x' is none of the network's 5; did you mea"),
  (_layers(name="block_1"), r"layer 'block_1' is there twice$"),
  (_layers(forward=-1), rf"layer 'block_0': forward is -1: {_SECS}"),
  (_layers(update="x"), rf"layer 'block_0': update is 'x': {_SECS}"),
  (_layers(forward=1e400), rf"layer 'block_0': forward is inf: {_SECS}"),
  (_layers(secs=1), r"layers\[0\]: field 'secs' is not one of name, forward, input_gr"),
  (
    {"layers": [{"name": "block_0"}]},
    r"layers\[0\]: forward, input_gradient, .* missi",
  ),
  ({"layers": LAYERS[::-1]}, r"layer 0 is 'loss', but 'block_0' in the network$"),
  ({"size": 3}, r"field 'size' is not one of device, batch, layers, end, crowding$"),
  ({"end": -1}, rf"end is -1: {_SECS}"),
  (_layers(backward=[]), rf"layer 'block_0': backward is \[\]: {_SECS}"),
]
HARDWARE = {
  "name": "tiny",
  "memory_bytes": 10**9,
  "flops_per_sec": 1e9,
  "number_format": "float32",
  "link_bytes_per_sec": 1e9,
}
HARDWARE_ROWS = [
  ({"memory_bytes": 0}, r"memory_bytes=0: must be a finite number above 0$"),
  ({"memory_bytes": -1}, r"memory_bytes=-1: must be a finite number above 0$"),
  ({"memory_bytes": 1.5}, r"memory_bytes=1\.5: must be a whole number above 0$"),
  ({"memory_bytes": "16 GiB"}, r"memory_bytes='16 GiB': must be a finite number above"),
  ({"flops_per_sec": None}, r"flops_per_sec=None: must be a finite number above 0$"),
  ({"link_bytes_per_sec": 0}, r"link_bytes_per_sec=0: must be a finite number above 0"),
  ({"link_latency_secs": -1}, r"link_latency_secs=-1: must be a finite number >= 0$"),
  ({"efficiency": 0}, r"efficiency=0: must be a number above 0, at most 1$"),
  ({"efficiency": 2}, r"efficiency=2: must be a number above 0, at most 1$"),
  ({"name": ""}, r"name='': must be a text of at least one letter$"),
  ({"name": 3}, r"name=3: must be a text$"),
  ({"number_format": 1}, r"number_format=1: must be a text$"),
  ({"memory": 3}, r"unknown field 'memory'; did you mean 'memory_bytes'\?$"),
]
# What no file of JSON may be.
BROKEN_ROWS = [
  (b"{", r"line 1: Expecting property name"),
  (b"", r"line 1: Expecting value$"),
  (b"\xff\xfe\x00", r"this is no text in UTF-8$"),
]
_SCHEDULE = ("--schedule={file}", "--remat=none")
_KINDS = [
  ("s.json", IMAGE, _SCHEDULE, JSON, JSON_ROWS),
  ("t.json", IMAGE, ("--layer_times={file}",), TIMES, TIMES_ROWS),
  ("h.json", IMAGE, (PLAN, "--hardware={file}"), HARDWARE, HARDWARE_ROWS),
]
_MISSING = r"there is no such file$"
# File and its content (None: it is not there), experiment, arguments, message.
TABLE = [
  *(("s.csv", CSV.replace(*c).encode(), IMAGE, _SCHEDULE, m) for c, m in CSV_ROWS),
  *(
    (file, json.dumps({**good, **change}).encode(), name, arguments, message)
    for file, name, arguments, good, rows in _KINDS
    for change, message in rows
  ),
  *(
    (file, content, name, arguments, message)
    for file, name, arguments, *_ in _KINDS
    for content, message in BROKEN_ROWS
  ),
  *((file, None, name, args, _MISSING) for file, name, args, *_ in _KINDS),
  ("s.csv", None, IMAGE, _SCHEDULE, _MISSING),
  (
    "s.txt",
    CSV.encode(),
    IMAGE,
    _SCHEDULE,
    r"must be one of gpipe, .*, or a file \.csv",
  ),
  (
    "s.csv",
    CSV.encode(),
    IMAGE,
    _SCHEDULE[:1],
    r"no recomputation: expected remat=none",
  ),
  (
    "s.csv",
    CSV.encode(),
    IMAGE,
    (*_SCHEDULE, "--num_partitions=3"),
    r"num_partitions is 3, but the file's is 2$",
  ),
  (
    "s.csv",
    CSV.encode(),
    IMAGE,
    (*_SCHEDULE, "--stages_per_device=2"),
    r"stages_per_device=2: must be 0 with schedule .*; only interleaved, .* take it$",
  ),
  ("f", b"--max_step=3", IMAGE, ("--flagfile={file}",), r"no flag --max_step; did you"),
  (
    "f",
    b"--num_partitions=x",
    IMAGE,
    ("--flagfile={file}",),
    r"--num_partitions=x: must be a whole number$",
  ),
  (
    "f",
    b"max_steps=3",
    IMAGE,
    ("--flagfile={file}",),
    r"unexpected arguments: max_steps=3$",
  ),
  *(
    (f"{split}/a.txt", content, CHAR, (f"--set={owner}.text_dir={{folder}}",), message)
    for owner, split in (("input", "train"), ("eval_input", "test"))
    for content, message in [
      (b"\xff\xfe", r"CharTextInput\.text_dir: .*a\.txt is not UTF-8: "),
      (
        "na\u00efve".encode(),
        r"a\.txt: character 'ï' at 2 is not in the vocabulary, which is the newline",
      ),
      (b"", r"CharTextInput\.seq_len = 128 is too long: split '\w+' has 0 characters"),
      (
        None,
        r"CharTextInput\.text_dir: no \*\.txt in .*; Shakespeare's works come the",
      ),
    ]
  ),
]
