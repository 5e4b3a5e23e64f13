"""Maintenance on the wire."""

from __future__ import annotations

import msgspec


class MaintenanceRequest(msgspec.Struct):
    enabled: bool


class FailedFiles(msgspec.Struct):
    count: int = 0
    totalBytes: int = 0
    totalMB: float = 0.0
    failoverCount: int = 0
    qos0Count: int = 0


class BufferStats(msgspec.Struct):
    pendingCount: int
    failedCount: int
    dbHealthy: bool
    failedFiles: FailedFiles


class MaintenanceState(msgspec.Struct):
    maintenanceMode: bool
    popMaintenanceMode: bool
    bufferedMessages: int
    bufferHealthy: bool
    bufferStats: BufferStats


class MaintenanceTurned(msgspec.Struct):
    maintenanceMode: bool
    bufferedMessages: int
    bufferHealthy: bool
    message: str


class PopMaintenance(msgspec.Struct):
    popMaintenanceMode: bool
    message: str
