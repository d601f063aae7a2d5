"""What a part needs of the machine beyond the server itself. A part that cannot run says what to install; the others run."""

from importlib.util import find_spec

EXTRAS = {"pyarrow": "journal", "deltalake": "archive", "pyspark": "spark"}
"""Module → the extra that brings it."""


def missing(modules: tuple[str, ...]) -> str:
    """What to do before this part can run; "" when all is there."""
    absent = [EXTRAS[module] for module in modules if find_spec(module) is None]
    if absent:
        return f"needs pip install 'ropewalk[{','.join(absent)}]'"
    return _java_missing() if "pyspark" in modules else ""


def _java_missing() -> str:
    from ropewalk.model.errors import UserMistake
    from ropewalk.pipeline.jvm import find_java

    try:
        find_java()
    except UserMistake as mistake:
        return str(mistake)
    return ""
