"""The kernels: functions of arrays, with no knowledge of models or engines. Start at kernels/README.md."""
