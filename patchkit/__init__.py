"""patchkit: versioned, reversible patches for installed ML packages."""

from __future__ import annotations

__version__ = "0.1.0"
