"""The one exception that is for people."""


class UserError(Exception):
    """Something the user can put right.

    The message is one sentence that names the file, line or key and says what to do. The command line
    prints it without a traceback and exits with status 2.
    """
