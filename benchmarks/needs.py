"""What a part needs of the machine beyond the server itself. A part that cannot run says what to install; the others run."""

from importlib.util import find_spec

from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install
from ropewalk.pipeline.jvm import find_java

MODULES = {
    "": (),
    "journal": ("pyarrow",),
    "archive": ("pyarrow", "deltalake"),
    "spark": ("pyarrow", "deltalake", "pyspark"),
}
"""Extra → the modules that it brings."""


def missing(extra: str) -> str:
    """What to do before a part that needs this extra can run; "" when all is there."""
    if not all(find_spec(module) for module in MODULES[extra]):
        return install(extra)
    return _java_missing() if extra == "spark" else ""


def _java_missing() -> str:
    try:
        find_java()
    except UserMistake as mistake:
        return str(mistake)
    return ""
