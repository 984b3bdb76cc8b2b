"""What every room may know: the errors."""


class FlipguardError(Exception):
    """The root of all errors that flipguard raises on purpose."""


class InputError(FlipguardError, ValueError):
    """Something the user gave is not usable.

    The message is one line that says what was expected, what came, and what to do. The command line prints it on
    stderr and exits 2.

    >>> raise InputError("old.parquet is empty: a prediction file needs at least one row.")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: old.parquet is empty: a prediction file needs at least one row.
    """


class MissingExtra(FlipguardError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""
