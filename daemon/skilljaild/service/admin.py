"""`AdminService`."""

from typing import Any

import grpc
from skilljail.v1 import admin_pb2, admin_pb2_grpc

from skilljaild.config import Config
from skilljaild.posture.examiner import Examiner
from skilljaild.service.convert_posture import posture_message
from skilljaild.service.identity import check_operator
from skilljaild.service.status import refusing_unary

__all__ = ["Admin"]

Context = grpc.aio.ServicerContext[Any, Any]


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """See `proto/skilljail/v1/admin.proto`."""

    def __init__(self, config: Config, examiner: Examiner) -> None:
        self._tls = config.tls is not None
        self._operators = config.admin.tenants
        self._examiner = examiner

    @refusing_unary
    async def SelfTest(  # noqa: N802
        self, request: admin_pb2.SelfTestRequest, context: Context
    ) -> admin_pb2.SelfTestResponse:
        del request
        check_operator(context, self._operators, tls=self._tls)
        return admin_pb2.SelfTestResponse(posture=posture_message(await self._examiner.examine()))
