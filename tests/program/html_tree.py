"""Reads a page as a tree of elements, strictly: every tag must be closed in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta"}


@dataclass
class Element:
  """An element, what is in it, and its text without that of its children."""

  tag: str
  attributes: dict[str, str | None]
  children: list[Element] = field(default_factory=list)
  text: str = ""

  def walk(self) -> Iterator[Element]:
    yield self
    for child in self.children:
      yield from child.walk()

  def find(self, tag: str, look: str = "", **attributes: str) -> list[Element]:
    """Lists elements by tag, one of their classes and attributes."""
    return [
      element
      for element in self.walk()
      if element.tag == tag
      and (not look or look in (element.attributes.get("class") or "").split())
      and attributes.items() <= element.attributes.items()
    ]

  def all_text(self) -> str:
    return self.text + "".join(child.all_text() for child in self.children)

  def numbers(self, *names: str) -> tuple[float, ...]:
    """Gives attributes as numbers, percentages as they are."""
    return tuple(float((self.attributes[name] or "").rstrip("%")) for name in names)


class _Reader(HTMLParser):
  def __init__(self) -> None:
    super().__init__()
    self.root = Element("", {})
    self.open = [self.root]

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute is given twice"
    element = Element(tag, dict(attrs))
    self.open[-1].children.append(element)
    if tag not in _VOID:
      self.open.append(element)

  def handle_endtag(self, tag: str) -> None:
    assert self.open.pop().tag == tag, f"</{tag}> closes something else"

  def handle_data(self, data: str) -> None:
    self.open[-1].text += data


def read(page: str) -> Element:
  reader = _Reader()
  reader.feed(page)
  reader.close()
  assert reader.open == [reader.root], "not all elements are closed"
  return reader.root
