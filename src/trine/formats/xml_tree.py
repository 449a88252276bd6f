"""Parser of untrusted XML: no entities, no internal DTD, no fetching, limited size, depth and element count."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from trine.common.schema import show
from trine.errors import SpecError

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 200
MAX_ELEMENTS = 1 << 20


@dataclass
class Element:
    """An element with its attributes, child elements, text, and first line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str, default: str = "") -> str:
        """Return an attribute, stripped."""
        return self.attributes.get(name, default).strip()

    def all(self, tag: str) -> list[Element]:
        """Return the child elements with this tag."""
        return [child for child in self.children if child.tag == tag]


def parse_xml(text: str, file: object) -> Element:
    """Return the root element.

    A DOCTYPE that only names an external DTD (hwloc writes one) is skipped; the DTD is never read.

    Raises SpecError: not well formed, contains entities or declarations, too large or too deep; names the line.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise SpecError(f"is larger than {MAX_BYTES} bytes", file=file)
    return _Builder(file).run(text)


class _Builder:
    def __init__(self, file: object) -> None:
        self.file = file
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.buffer_text = True
        self.parser.CharacterDataHandler = self.data
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.EntityDeclHandler = self.refuse_entity
        self.parser.ExternalEntityRefHandler = self.refuse_entity

    def run(self, text: str) -> Element:
        try:
            self.parser.Parse(text.encode("utf-8", "surrogatepass"), True)
        except expat.ExpatError as error:
            message = expat.ErrorString(error.code)
            raise SpecError(f"not valid XML: {message}", file=f"{self.file}:{error.lineno}") from None
        except ValueError as error:
            raise SpecError(f"not valid XML: {error}", file=self.file) from None
        if self.root is None:
            raise SpecError("holds no element", file=self.file)
        return self.root

    def fault(self, message: str) -> SpecError:
        return SpecError(message, file=f"{self.file}:{self.parser.CurrentLineNumber}")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self.fault(f"has more than {MAX_ELEMENTS} elements")
        if len(self.open) >= MAX_DEPTH:
            raise self.fault(f"is nested deeper than {MAX_DEPTH} levels")
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def data(self, text: str) -> None:
        if self.open and not text.isspace():
            self.open[-1].text += text

    def end(self, tag: str) -> None:
        self.open.pop()

    def doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            raise self.fault("a DTD inside the file is not accepted")

    def refuse_entity(self, *parts: object) -> int:
        raise self.fault(f"entities are not accepted ({show(parts[0])})")
