"""What holds for all tests."""

import signal

# A shell that starts the tests in the background has them ignore Ctrl-C, and every program that
# they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
