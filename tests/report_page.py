"""Reads a trace report back: its elements, answers and tokens, from the page's text alone."""

from html.parser import HTMLParser

from diversed.report.page import Limits, render
from diversed.report.runs import load_runs

STATUSES = {"a": "accepted", "x": "rejected", "u": "unjudged", "r": "recovered", "b": "bonus"}
VOID = {"meta", "link", "input", "br"}


class Element:
    """A tag with its attributes, its elements, and the text below it."""

    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children, self.parts = tag, attributes, [], []

    @property
    def text(self):
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    def find_all(self, tag=None, **wanted):
        """Return the elements below with a tag and attributes; `class_` asks for one class."""
        names = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        found = []
        for child in self.children:
            has = child.attributes
            fits = all(
                value in (has.get(name) or "").split()
                if name == "class"
                else has.get(name) == value
                for name, value in names.items()
            )
            found += [child] if fits and tag in (None, child.tag) else []
            found += child.find_all(tag, **wanted)
        return found

    def find(self, tag=None, **wanted):
        (found,) = self.find_all(tag, **wanted)
        return found


class Parser(HTMLParser):
    """Builds the tree of a page, as strict about closing tags as a browser is lenient."""

    def __init__(self):
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        self.open[-1].parts.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].parts.append(data)


def parse(text):
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root]
    return parser.root


def page_of(folders, **limits):
    return parse(render(load_runs(folders), Limits(**limits)))


def answers_of(page, prompt_id):
    return page.find("article", data_prompt_id=prompt_id).find_all("section", class_="answer")


def tokens_of(section):
    """Return one mapping per token, as a reader of the page would work them out."""
    found = []
    for block_element in section.find(class_="tokens").children:
        (index, start), *numbers = [
            entry.split(" ") for entry in block_element.attributes["data-n"].split(",")
        ]
        assert len(numbers) == len(block_element.children)
        num_drafted = num_accepted = 0
        for token, values in zip(block_element.children, numbers, strict=True):
            status = STATUSES[token.attributes["class"].split()[0]]
            is_drafted = status in ("accepted", "rejected", "unjudged")
            place = num_drafted if is_drafted else num_accepted
            num_drafted += is_drafted
            num_accepted += status == "accepted"
            found.append(
                {
                    "token": token.text,
                    "status": status,
                    "block": int(index),
                    "position": int(start) + place,
                    "block_position": place,
                    "classes": token.attributes["class"].split()[1:],
                    "numbers": values,
                }
            )
    return found
