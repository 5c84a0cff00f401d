"""Memory of feature maps, kept between steps.

The C library of Linux gives memory of large tensors back to the system as soon as they are freed,
and each step has to ask for all of it again, page by page. Keeping it makes a step on a CPU about a
seventh quicker; the process then holds what its largest step needed until it ends.
"""

import ctypes
import sys

# Numbers of glibc's malloc.h. M_MMAP_MAX = 0: large tensors come from the heap, too.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_MOST = 2**31 - 1
_AHEAD = 2**28


def keep_freed_memory() -> bool:
    """Keep freed memory for the next step, in this whole process; gives whether it could be done.

    Other systems and other C libraries stay as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is None:
        return False
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _AHEAD))
    return all(choose(option, value) == 1 for option, value in wanted)
