"""Settings of the property tests."""

from hypothesis import settings

# How long an example takes says nothing here: machines that run tests are shared and slow.
settings.register_profile("wire", deadline=None)
settings.load_profile("wire")
