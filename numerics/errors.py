"""The error that stands for every mistake that the user can fix."""

from refsd.numerics.printable import printable


class BadInput(Exception):
    """Bad usage or bad input: a file, a tensor, an option.

    The message is one line that names the file and the tensor, what was expected, what was found
    and what to do. Control characters are escaped, because the message may quote a file. The command
    line prints it and exits with code 2.
    """

    def __init__(self, message: str):
        super().__init__(printable(message))
