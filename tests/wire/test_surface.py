"""The public surface of ``wire``: small, documented, and free of other packages."""

import inspect
import pickle
import pkgutil
import subprocess
import sys

import pytest

import wire
from wire import errors

PUBLIC = {
    "Contract",
    "HeaderNames",
    "HeaderProfile",
    "RawJson",
    "Reason",
    "RetrySchedule",
    "SecretError",
    "SurehookError",
    "Verified",
    "VerificationError",
    "WireError",
    "generate_secret",
    "parse_secret",
    "public_key",
    "sign",
    "verify",
}


def test_exactly_these_names_are_exported():
    modules = {module.name for module in pkgutil.iter_modules(wire.__path__)}
    assert set(wire.__all__) == PUBLIC
    assert {name for name in vars(wire) if not name.startswith("_")} - modules == PUBLIC
    assert list(wire.__all__) == sorted(wire.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(wire, name))


def test_every_error_has_the_one_root_and_survives_pickling():
    made = [
        errors.VerificationError("body_not_bytes", "text"),
        errors.EnvelopeTooLargeError(2, 1),
        *(
            getattr(errors, name)("text")
            for name in (
                "IdError",
                "EnvelopeError",
                "HeaderError",
                "SecretError",
                "ScheduleError",
                "ProfileError",
                "WireError",
            )
        ),
    ]
    for error in made:
        assert isinstance(error, wire.SurehookError)
        assert isinstance(error, ValueError)
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


def test_importing_wire_loads_no_other_part_and_no_framework():
    code = (
        "import sys, wire; "
        "bad = {'sender', 'receiver', 'delivery_service', 'sqlalchemy', 'httpx', 'aiohttp', "
        "'fastapi', 'pydantic'} & set(sys.modules); "
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
