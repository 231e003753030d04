"""What travels: ids, envelope, secrets, signatures, header profiles, retry schedules.

Here are the names that platforms and receivers use; the rest is in the modules.
"""

from wire.contract import Contract
from wire.errors import SecretError, SurehookError, VerificationError, WireError
from wire.profiles import HeaderProfile
from wire.rawjson import RawJson
from wire.schedule import RetrySchedule
from wire.secrets import generate_secret, parse_secret, public_key
from wire.signature import HeaderNames, Reason, Verified, sign, verify

__all__ = [
    "Contract",
    "HeaderNames",
    "HeaderProfile",
    "RawJson",
    "Reason",
    "RetrySchedule",
    "SecretError",
    "SurehookError",
    "VerificationError",
    "Verified",
    "WireError",
    "generate_secret",
    "parse_secret",
    "public_key",
    "sign",
    "verify",
]
