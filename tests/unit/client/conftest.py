"""What every test of the client shares."""

from support.client_fixtures import no_settings_from_outside, one_thread

__all__ = ["no_settings_from_outside", "one_thread"]
