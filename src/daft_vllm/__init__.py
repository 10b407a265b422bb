"""daft-vllm: self-hosted, offline vLLM inference as a Daft column function.

Importing this package is quick: Daft, vLLM and torch are imported when they are first needed. The public names are
listed in ``__init__.pyi``, and nowhere else.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
