"""What patchkit raises: one sentence that says what is wrong, one hint of what to type next."""

from __future__ import annotations


class PatchkitError(Exception):
    """A refusal or a failure that the user can act on.

    ``message`` is one clear sentence. ``hint`` says what to type or do next; it may be empty.
    The command line prints both and exits 1.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ManifestError(PatchkitError):
    """A ``patch.toml``, project file or patch folder is wrong; every problem is in the message."""


class PatchError(PatchkitError):
    """An edit does not fit the file it is for: no match, too many, not byte-preserving."""


class TargetError(PatchkitError):
    """The target interpreter, its site-packages or a distribution is not as needed."""


class LedgerError(PatchkitError):
    """The ledger, or what it refers to, cannot be used as it is."""


class NewerStateError(LedgerError):
    """A newer patchkit wrote the ledger or the journal; it must not be touched."""


class StoreError(PatchkitError):
    """Writing to site-packages failed; what had been written was put back."""
