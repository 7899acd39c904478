"""Pages that answer: the inspector of a model, and the page of human evaluation."""

from cbmi.errors import UserError

try:
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError:
    raise UserError("Serving needs the extra 'serve': pip install 'cbmi[serve]'.") from None
