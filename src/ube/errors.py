"""The one error users are meant to read: it names the offending value and the remedy."""


class UsageError(ValueError):
    """Input that cannot be used as given. The commands print its message alone, without a traceback."""
