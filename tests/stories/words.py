"""The forms of steps in stories, and matching a step with its form.

A form is a sentence with blanks to fill in: `{writer} appends {count} record(s) [of {bytes} bytes]`. What may
stand in a blank is in KINDS; `(s)` may be there or not, and so may what is in brackets. Brackets without a
blank are a flag, named by their words.

The definition of a form implements what its step does.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

KINDS: Final[dict[str, str]] = {
    "count": r"\d+",
    "bytes": r"\d+",
    "number": r"\d+",
    "seconds": r"\d+(?:\.\d+)?",
    "text": r".+",
    "writer": r"[A-Z]",
    "client": r"[A-Z]|the reader",
    "server": r"s\d",
    "servers": r"s\d(?:, s\d)*",
    "directory": r"[a-z0-9][a-z0-9._-]*",
    "object": r"\d+:\d+",
}
"""kind of blank -> what may stand in it. `{other:writer}` is another writer."""

_FLAGS: Final = re.compile(r" \[([^\]{}]+)\]")
_BLANK: Final = re.compile(r"\{(?:(?P<name>\w+):)?(?P<kind>\w+)\}")


class UnknownStepError(Exception):
    """No form fits."""


class WrongStepError(Exception):
    """The form fits, the moment does not: what is to happen cannot happen now."""


@dataclass(frozen=True)
class Form:
    """A form of steps, what happens, and what does it."""

    form: str
    what: str
    pattern: re.Pattern[str]
    kinds: dict[str, str]
    act: Callable[..., None]


def _pattern_of(form: str) -> tuple[re.Pattern[str], dict[str, str]]:
    kinds: dict[str, str] = {}

    def blank(match: re.Match[str]) -> str:
        name = match["name"] or match["kind"]
        kinds[name] = match["kind"]
        return f"(?P<{name}>{KINDS[match['kind']]})"

    def flag(match: re.Match[str]) -> str:
        name = "_".join(match[1].split())
        kinds[name] = "flag"
        return f"(?P<{name}> {match[1]})?"

    text = _FLAGS.sub(flag, form).replace("(s)", "s?").replace(" [", "(?: ").replace("]", ")?")
    return re.compile(_BLANK.sub(blank, text)), kinds


class Vocabulary:
    """The forms that one kind of story knows. The first one begins such a story."""

    def __init__(self) -> None:
        self.forms: list[Form] = []

    def form(self, form: str, what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Define a form: the function is called with the story and what stands in the blanks, by name."""
        pattern, kinds = _pattern_of(form)

        def define(act: Callable[..., None]) -> Callable[..., None]:
            self.forms.append(Form(form, what, pattern, kinds, act))
            return act

        return define

    def begins(self, step: str) -> bool:
        """Whether a story that begins so is one of this kind."""
        return self.forms[0].pattern.fullmatch(step) is not None

    def do(self, story: Any, step: str) -> None:
        """Let a step happen. Raises UnknownStepError, WrongStepError."""
        for form in self.forms:
            match = form.pattern.fullmatch(step)
            if match is not None:
                form.act(story, **{name: _value(form.kinds[name], match[name]) for name in form.kinds})
                return
        raise UnknownStepError(f"no step has the form of '{step}'; the forms are\n{self.listed()}")

    def listed(self) -> str:
        return "\n".join(f"    {form.form}" for form in self.forms)


def _value(kind: str, text: str | None) -> Any:
    if kind == "flag":
        return text is not None
    if text is None:
        return None
    if kind in ("count", "bytes", "number"):
        return int(text)
    if kind == "seconds":
        return float(text)
    return text.split(", ") if kind == "servers" else text
