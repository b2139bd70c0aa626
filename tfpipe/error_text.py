"""What an error says, for people: of a file which, what is wrong, what to do."""

from __future__ import annotations

import errno
import os
import re

REFUSALS = (
  ValueError,
  TypeError,
  LookupError,
  AttributeError,
  NotImplementedError,
  OSError,
  ImportError,
)
"""What says that something cannot be as it was asked for."""

_FREE = "", "remove what is not needed"
_MINE = "this may not be read or written", "change its permissions, or name another"
# What is wrong (empty: as the system says it), and what to do.
_TEXTS = {
  errno.EISDIR: ("this is a folder where a file must be", "move it away"),
  errno.ENOTDIR: ("a file is where a folder must be", "move it away"),
  errno.EEXIST: ("something else of this name is there", "move it away"),
  errno.ENOTEMPTY: ("this is a folder where a file must be", "move it away"),
  errno.ENOENT: ("there is no such file or folder", "make it, or name another"),
  errno.EACCES: _MINE,
  errno.EPERM: _MINE,
  errno.EROFS: ("this can only be read", "name a folder that can be written"),
  errno.ENOSPC: _FREE,
  errno.EDQUOT: _FREE,
  errno.ENAMETOOLONG: ("the name is too long", "give a shorter one"),
  errno.ELOOP: ("its links lead in a circle", "name another"),
  errno.EMFILE: ("too many files are open", "raise `ulimit -n`"),
  errno.EIO: ("the disk cannot read or write it", "see whether the disk is sound"),
}


_SHOWN = re.compile(r"[^ -~\n]")


def printable(text: str) -> str:
  """Gives a text with escapes in place of what would change the terminal.

  Names of files and values of flags may hold anything; lines stay.
  """
  return _SHOWN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
  character = found[0]
  if character.isprintable():
    return character
  return character.encode("unicode_escape").decode()


def of(error: BaseException, where: object = "") -> str:
  """Gives the message of an error, without what only programmers need.

  Args:
    error: its own words are kept, unless they are those of the operating system.
    where: the file or folder, if the error is of one and does not name it.
  """
  return printable(_of(error, where))


def _of(error: BaseException, where: object) -> str:
  if isinstance(error, LookupError) and error.args:
    return str(error.args[0])
  if not isinstance(error, OSError) or error.errno is None:
    return str(error)
  file = error.filename2 or error.filename or where
  why = error.strerror or str(error)
  if error.errno in _TEXTS:
    system, (what, advice) = os.strerror(error.errno), _TEXTS[error.errno]
    why = f"{what if what and why == system else why}; {advice}"
  return f"{file}: {why}" if file else why
