"""The one error that is the user's to mend."""

from refsd.numerics.printable import printable


class BadInput(Exception):
    """Bad usage or bad input: a file, a tensor, an option.

    The message is one line that names the file and the tensor, what was expected, what was found
    and what to do. It is made printable, for it may quote what a file says. The command line prints it
    and exits with 2.
    """

    def __init__(self, message: str):
        super().__init__(printable(message))
