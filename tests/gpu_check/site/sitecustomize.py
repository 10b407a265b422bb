"""Notes the mask that each process starts with. Python imports this file if its folder is in PYTHONPATH.

Later it can't be seen from outside: vLLM's processes write their titles where their environment was.
"""

import os

if "NOTED_MASKS" in os.environ:
    with open(os.environ["NOTED_MASKS"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
