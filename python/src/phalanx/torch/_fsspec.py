# SPDX-License-Identifier: Apache-2.0
"""Makes fsspec know phalanx:// after `import phalanx.torch`, also where the package is not installed with its entry points."""

from __future__ import annotations

try:
    import fsspec
except ImportError:  # PyTorch itself does without until DCP gets a URL
    pass
else:
    fsspec.register_implementation("phalanx", "phalanx.torch.filesystem.PhalanxFileSystem", clobber=True)
