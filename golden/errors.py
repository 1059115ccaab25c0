"""The one error that is the user's to mend."""


class BadInput(Exception):
    """Bad usage or bad input: a file, a tensor, an option.

    The message is one line that names the file and the tensor, what was expected, what was found
    and what to do. The command line prints it and exits with 2.
    """
