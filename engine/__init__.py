"""vLLM and nothing of Daft: requests in, outcomes out. Importing this package imports neither vLLM nor torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
