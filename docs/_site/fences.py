"""Doctests in a docstring are code: without a fence, Markdown takes `>>>` for three quotations."""

import re

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    """The docstring with each doctest in a fence of its own.

    >>> print(fenced("Adds.\\n\\n>>> 1 + 1\\n2").replace("`", "'"))
    Adds.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    """
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
