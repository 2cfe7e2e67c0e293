"""The one exception that users see as a line instead of a traceback."""


class LoopscopeError(Exception):
    """A mistake that the user can mend: one line that says what is wrong and what to do.

    The command line prints the message and exits with 2. Every other exception is a bug of ours and
    keeps its traceback.
    """
