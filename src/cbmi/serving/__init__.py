"""Servers: the inspector of a model with its API, and the pages of human evaluation."""

from __future__ import annotations

from cbmi.errors import import_extra

for _module in ("starlette", "uvicorn"):
    import_extra(_module, "Serving", "serve")
