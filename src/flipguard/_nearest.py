"""What to say about a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or else all of them.

    >>> nearest("widht", ["width", "stem"]), nearest("x", ["width", "stem"])
    ("; did you mean 'width'?", '; there are: stem, width.')
    """
    known = sorted(names)
    close = get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; there are: {', '.join(known[:30])}{', …' if len(known) > 30 else '.'}"


def shortened(text: str, most: int = 60) -> str:
    """A value as a message quotes it: of a long one the beginning.

    >>> shortened("id,label,prediction", 9)
    'id,label…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
