"""`make test-stores` runs sequencers on one store. The contract of `Files` runs on each."""

import pytest
from object_servers import OBJECT_SERVERS, ObjectServer
from targets import nightly_but


@pytest.fixture(params=nightly_but(["s3"], OBJECT_SERVERS))
def object_server(request: pytest.FixtureRequest) -> ObjectServer:
    server: ObjectServer = request.getfixturevalue(request.param)
    return server
