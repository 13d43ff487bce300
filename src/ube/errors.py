"""The errors users are meant to read: they name the offending value and the remedy, and print without a traceback."""


class UsageError(ValueError):
    """Input that cannot be used as given. The commands print its message alone, without a traceback."""


class RunError(RuntimeError):
    """A run that cannot go on: it diverged, or its environment failed."""
