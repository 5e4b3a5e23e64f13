"""A thread with an event loop, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_STOP_S = 2.0


class LoopThread:
    """Runs coroutines for threads that have no loop.

    It starts with the first of them. It does not keep a program from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.is_stopped = False

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something and wait for it here."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the thread that does the work cannot wait for it")
        running = asyncio.run_coroutine_threadsafe(work, self._running_loop(work))
        try:
            return running.result()
        except BaseException:
            # Ctrl-C: nobody waits for the answer any more.
            running.cancel()
            raise

    def _running_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        with self._start:
            if self.is_stopped:
                work.close()
                raise RuntimeError("the stream broker is closed")
            if self._loop is None or self._thread is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name=self._name, daemon=True
                )
                self._thread.start()
            elif not self._thread.is_alive():
                work.close()
                raise RuntimeError("a stream broker cannot be used after a fork; make a new one")
            return self._loop

    def stop(self) -> None:
        """End what still runs, and the thread."""
        with self._start:
            self.is_stopped = True
            loop, thread = self._loop, self._thread
            self._loop = None
        if loop is None or thread is None or not thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_STOP_S)
