"""An object that lives in a process of its own and is called from here.

Calls are handled one at a time and in order; an exception over there is raised over here.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Pending(Generic[R]):
    """A call under way. Ask for its result before the next call begins."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def result(self) -> R:
        failed, answer = self._pipe.recv()
        if failed:
            raise answer
        done: R = answer
        return done


class Remote(Generic[T]):
    """Runs `factory()` in a new process; methods are named by their function, so that calls stay typed."""

    def __init__(self, factory: Callable[[], T]) -> None:
        # spawn, not fork: the child must not inherit our sockets
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(factory, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def begin(self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs) -> Pending[R]:
        self._pipe.send((method.__name__, args, kwargs))
        return Pending(self._pipe)

    def call(self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.begin(method, *args, **kwargs).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pipe.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()


def _serve(factory: Callable[[], object], pipe: "Connection[Any, Any]") -> None:
    target = factory()
    while True:
        try:
            name, args, kwargs = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send((False, getattr(target, name)(*args, **kwargs)))
        except Exception as error:
            pipe.send((True, error))
