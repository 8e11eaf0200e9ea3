"""The process of a job: logs, signals, exit codes and native memory."""
