"""The public surface of ``receiver``: small, documented, and no heavier than what is used of it."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys

import pytest

import receiver
import wire
from receiver import errors
from receiver.pull import FeedError

PUBLIC = {
    "Answer",
    "Gate",
    "Inbox",
    "KeyRule",
    "MemoryStore",
    "Message",
    "MissedEvents",
    "VerificationError",
    "Verifier",
    "check_memory",
}


def test_exactly_these_names_are_exported() -> None:
    assert set(receiver.__all__) == PUBLIC
    assert len(PUBLIC) <= 10
    modules = {module.name for module in pkgutil.iter_modules(receiver.__path__)}
    ours = {name for name in vars(receiver) if not name.startswith("_")}
    assert ours - modules - {"Any", "TYPE_CHECKING"} <= PUBLIC
    with pytest.raises(AttributeError, match="has no attribute 'Inboxes'"):
        receiver.Inboxes  # noqa: B018 - reading it is the test


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_documented_with_its_public_methods(name: str) -> None:
    public = getattr(receiver, name)
    assert inspect.getdoc(public)
    for member, value in vars(public).items() if isinstance(public, type) else ():
        if callable(value) and not member.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{member}"


def test_every_module_exports_what_it_names() -> None:
    for module in pkgutil.walk_packages(receiver.__path__, "receiver."):
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            assert hasattr(loaded, name), f"{module.name}.{name}"


def test_every_error_has_the_one_root_and_survives_pickling() -> None:
    made = [
        errors.SignatureError("signature_mismatch", "text"),
        errors.RequestError("key_missing", "text"),
        errors.ConfigurationError("text"),
        errors.GateError("text"),
        errors.StoreFullError("text"),
        FeedError("text"),
    ]
    for error in made:
        assert isinstance(error, wire.SurehookError)
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
    assert issubclass(errors.GateError, errors.ConfigurationError)
    assert issubclass(errors.ConfigurationError, ValueError)


def test_verifying_and_claiming_load_neither_sqlalchemy_nor_a_framework() -> None:
    code = (
        "import sys, receiver; receiver.Gate(receiver.MemoryStore()); "
        "bad = {'sender', 'delivery_service', 'sqlalchemy', 'httpx', 'aiohttp', 'redis', 'flask', "
        "'django', 'starlette', 'fastapi', 'pydantic'} & set(sys.modules); "
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
