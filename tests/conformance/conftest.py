"""One suite for every `ReducerEndpoint`: the engine in process, and each transport's client against its server.

A test is a coroutine that receives `place`, a reducer to which workers can be opened. It runs on uvloop, as in
production, and the timeout only guards against hangs.
"""

import asyncio
import inspect

import pytest
import uvloop
from conformance.places import ArenaPlace, GrpcPlace, Place, SharedArenaPlace, SharedPlace, TcpPlace, TlsPlace

HANG_S = 30.0

#: One loop for all tests: a process has one grpc.aio poller, which still has events of a loop that is closed.
RUNNER = asyncio.Runner(loop_factory=uvloop.new_event_loop)


PLACES = {
    "engine": Place,
    "grpc": GrpcPlace,
    "tcp": TcpPlace,
    "tcp-placed": ArenaPlace,
    "tcp-tls": TlsPlace,
    "shared": SharedPlace,
    "shared-placed": SharedArenaPlace,
}


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def place(request):
    return request.param()


@pytest.fixture
def grpc_place():
    return GrpcPlace()


@pytest.fixture
def shared_place():
    return SharedPlace()


@pytest.fixture
def tcp_place():
    return TcpPlace()


@pytest.fixture
def tls_place():
    return TlsPlace()


def pytest_unconfigure():
    RUNNER.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine test, after starting its place and before stopping it, if it has one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    raised = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        place = next((value for value in arguments.values() if isinstance(value, Place)), None)
        if place is not None:
            await place.start()
        try:
            async with asyncio.timeout(HANG_S):
                await pyfuncitem.obj(**arguments)
        finally:
            if place is not None:
                await place.stop()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    RUNNER.run(run())
    assert not raised, raised
    return True
