"""`find_master`: looks up the master where the setting `master` says where it is announced."""

import logging
from dataclasses import dataclass

from gradwire.errors import UsageError
from gradwire.settings.settings import Settings
from gradwire.threads.notice import announced
from gradwire_protocol import Credentials
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.places import Place, place_of
from gradwire_udp.discovery.search import Search, Watch

logger = logging.getLogger("gradwire.join")


@dataclass(frozen=True, slots=True)
class Found:
    """A master that was looked up."""

    place: Place
    announcement: Announcement

    def watch(self, number: int) -> Watch:
        """Return what looks again for one of the masters that share the parameters."""
        return Watch(self.place, number, self.announcement)

    def check_keys(self, credentials: Credentials | None) -> None:
        """Raise `UsageError` where the master would drop every packet of this worker.

        It would do so without a word. A false announcement gains nothing by this: the worker does
        not join, as if it were sent to a wrong address.
        """
        keys = self.announcement.keys
        if keys is None:
            return
        where = f"the master at {self.announcement.master}, announced at {self.place.text},"
        key = None if credentials is None else credentials.key
        if key is None:
            if keys:
                raise UsageError(
                    f"{where} has run key {', '.join(keys)}, and this worker has no key: make one "
                    "there by `gradwire keygen --worker NAME --from run.key`, and name it here by "
                    "key_file or GRADWIRE_KEY_FILE"
                )
            return
        ours = key.key_id[1 : 1 + FINGERPRINT_BYTES].hex()
        if ours not in keys:
            theirs = f"run key {', '.join(keys)}" if keys else "no key"
            raise UsageError(
                f"{where} has {theirs}, and the key of this worker is of run key {ours}"
            )


def find_master(
    settings: Settings, *, waits_for_start: bool = True
) -> tuple[Settings, Found | None]:
    """Return the settings, with those that the master announces, and the master.

    Where `master` is an address, that is the settings as they are, and None. With
    `waits_for_start`, a master that is not announced yet is waited for.

    Raises
    ------
    UnreachableError
        If no master is announced in time.
    UsageError
        If what is there is no announcement, or a setting in it cannot work.
    """
    place = place_of(settings.master)
    if place is None:
        return settings, None
    answer = settings.connect_timeout_seconds
    search = Search(
        place,
        answer_seconds=answer,
        start_seconds=settings.start_timeout_seconds if waits_for_start else answer,
    )
    with announced(lambda: search.purpose):
        found = search.run()
    logger.info("the master is at %s: %s, %s", found.master, place.text, found.age_text())
    return settings.with_announced(found.settings), Found(place, found)
