"""Fetch the jars with which Spark reads Azure (ABFS), once, and keep them in a folder of the user.

    python -m lakemq.jobs.azure_jars            fetch missing jars
    python -m lakemq.jobs.azure_jars --print    the kept jars, comma separated, for `spark-submit --jars`

The folder is `azure-<Hadoop's version>` in that of Delta's jars. The jars have under 2 MB, because Spark has their
other dependencies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lakemq.jobs.jars import Jar, JarSet
from lakemq.jobs.s3a_jars import HADOOP_VERSION

AZURE_JARS = JarSet(
    f"The jars of ABFS (Hadoop {HADOOP_VERSION})",
    "lakemq.jobs.azure_jars",
    (
        Jar(
            "org.apache.hadoop",
            "hadoop-azure",
            HADOOP_VERSION,
            "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
        ),
        # hadoop-azure names its classes where it opens connections with TLS
        Jar(
            "org.wildfly.openssl",
            "wildfly-openssl",
            "2.2.5.Final",
            "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154",
        ),
    ),
    f"azure-{HADOOP_VERSION}",
)


def main(arguments: Sequence[str] | None = None) -> int:
    return AZURE_JARS.run_command((__doc__ or "").splitlines()[0], arguments)


if __name__ == "__main__":
    sys.exit(main())
