"""Health checks and reflection, which are open to everyone. Their requests are short and read in turns.

On their own, gRPC's servicers would let all calls send messages of FRAME_BYTES_MAX at the same time, and
a watch would keep the name in its request.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from reduction.errors import MalformedFrame, ResourceExhausted
from reduction.limits import SERVICE_REQUEST_BYTES_MAX

from reducer.resources.heap import Heap
from reducer.transports.turns import Turns

#: Status of a call that cannot be served. `context.abort` is not used, because its exception would
#: keep the call and its request.
CODES: Mapping[type[Exception], grpc.StatusCode] = {
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MalformedFrame: grpc.StatusCode.INVALID_ARGUMENT,
    DecodeError: grpc.StatusCode.INVALID_ARGUMENT,
    NotImplementedError: grpc.StatusCode.UNIMPLEMENTED,
}

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context = grpc.aio.ServicerContext[Any, Any]


class _Server:
    """Collector of the handlers that generated code adds to a server."""

    def __init__(self) -> None:
        self.services: dict[str, Mapping[str, Handler]] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignore the handlers, because generated code also adds them by name."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Handler]) -> None:
        """Remember the methods of a service."""
        self.services[service] = methods


def open_services(
    health: object, names: Sequence[str], turns: Turns, heap: Heap
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of a health servicer, and of reflection for the named services."""
    server = _Server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    servicer = reflection.aio.ReflectionServicer(names)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    return tuple(
        grpc.method_handlers_generic_handler(
            service, {name: _guarded(method, turns, heap) for name, method in methods.items()}
        )
        for service, methods in server.services.items()
    )


def _guarded(method: Any, turns: Turns, heap: Heap) -> Handler:
    """Return a handler that reads in turns and otherwise behaves like `method`."""
    behaviour = next(
        function
        for function in (method.unary_unary, method.unary_stream, method.stream_unary, method.stream_stream)
        if function is not None
    )

    async def requests(context: Context) -> AsyncIterator[Any]:
        while True:
            data = await turns.read(context, SERVICE_REQUEST_BYTES_MAX)
            if data is grpc.aio.EOF:
                return
            yield method.request_deserializer(data)

    async def serve(_: AsyncIterator[bytes], context: Context) -> None:
        coming = requests(context)
        try:
            if method.request_streaming:
                answer = behaviour(coming, context)
            else:
                request = await anext(coming, None)
                if request is None:
                    return
                answer = behaviour(request, context)
            if inspect.isasyncgen(answer):
                async for message in answer:
                    await context.write(message)
            elif (message := await answer) is not None:
                await context.write(message)
        except tuple(CODES) as error:
            context.set_code(CODES[type(error)])
            context.set_details(str(error))
        finally:
            heap.give_back_soon()

    return grpc.stream_stream_rpc_method_handler(serve, response_serializer=method.response_serializer)
