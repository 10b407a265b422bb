"""Gives Triton a driver that does nothing, so that vLLM's runner for GPUs runs on a CPU, in Triton's interpreter.

Python imports this file when it starts, if its folder is in PYTHONPATH: vLLM asks for Triton's drivers when it is
imported.
"""

import os
import types

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    class _NoDriver:
        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: object) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cpu", 0, 1)

    backends["cpu"] = types.SimpleNamespace(compiler=None, driver=_NoDriver)
