"""`sync_folder`: makes the name of a new file survive a power failure."""

import errno
import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, if its file system can do that.

    Raises
    ------
    OSError
        If the disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)
