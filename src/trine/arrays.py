"""Names of array types: one for each kind of number that columns hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]
