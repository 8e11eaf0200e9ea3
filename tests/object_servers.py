"""The object stores that tests of all stores run with."""

import os
from typing import TypeAlias

import azurite
import gcs_server
from azurite import AzureServer
from gcs_server import GcsServer
from s3_server import S3Server

ObjectServer: TypeAlias = S3Server | AzureServer | GcsServer

_OPTIONAL = {"azure": azurite.VARIABLE, "gcs": gcs_server.VARIABLE}

OBJECT_SERVERS = ["s3", *(name for name, variable in _OPTIONAL.items() if variable in os.environ)]
"""Fixtures of these servers. The emulators of Azure and Google run with `make test-stores` only."""
