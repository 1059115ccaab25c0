"""Load any shared libggml through ctypes. Only functions are used, so no version's struct layout matters.

The one exception is ggml_init_params, which is passed by value and has never changed.
"""

import ctypes
import hashlib
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from pathlib import Path

from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable

# Load order: each file needs those before it. A build with plug-ins has a libggml-cpu-* for each kind of CPU.
_PARTS = ("ggml-base", "ggml-cpu", "ggml")


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


_T = c_void_p  # ggml_tensor *
_C = c_void_p  # ggml_context *

# function: (result, arguments). Source: ggml.h, ggml-cpu.h, ggml-alloc.h, ggml-backend.h.
_SIGNATURES: dict[str, tuple] = {
    "ggml_version": (c_char_p, ()),
    "ggml_init": (_C, (InitParams,)),
    "ggml_free": (None, (_C,)),
    "ggml_tensor_overhead": (c_size_t, ()),
    "ggml_graph_overhead": (c_size_t, ()),
    "ggml_new_graph": (c_void_p, (_C,)),
    "ggml_build_forward_expand": (None, (c_void_p, _T)),
    "ggml_new_tensor_4d": (_T, (_C, c_int, c_int64, c_int64, c_int64, c_int64)),
    "ggml_nbytes": (c_size_t, (_T,)),
    "ggml_nelements": (c_int64, (_T,)),
    "ggml_blck_size": (c_int64, (c_int,)),
    "ggml_type_size": (c_size_t, (c_int,)),
    # backends
    "ggml_backend_load_all_from_path": (None, (c_char_p,)),
    "ggml_backend_dev_count": (c_size_t, ()),
    "ggml_backend_dev_get": (c_void_p, (c_size_t,)),
    "ggml_backend_dev_name": (c_char_p, (c_void_p,)),
    "ggml_backend_dev_description": (c_char_p, (c_void_p,)),
    "ggml_backend_dev_backend_reg": (c_void_p, (c_void_p,)),
    "ggml_backend_dev_buffer_type": (c_void_p, (c_void_p,)),
    "ggml_backend_dev_init": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_reg_name": (c_char_p, (c_void_p,)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_get_device": (c_void_p, (c_void_p,)),
    "ggml_backend_supports_op": (c_bool, (c_void_p, _T)),
    "ggml_backend_buft_name": (c_char_p, (c_void_p,)),
    "ggml_backend_buffer_get_type": (c_void_p, (c_void_p,)),
    "ggml_graph_n_nodes": (c_int, (c_void_p,)),
    "ggml_graph_node": (_T, (c_void_p, c_int)),
    "ggml_op_desc": (c_char_p, (_T,)),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, (_C, c_void_p)),
    "ggml_backend_buffer_clear": (None, (c_void_p, c_uint8)),
    "ggml_backend_buffer_free": (None, (c_void_p,)),
    "ggml_backend_buffer_get_size": (c_size_t, (c_void_p,)),
    "ggml_backend_tensor_set": (None, (_T, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (_T, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_graph_compute": (c_int, (c_void_p, c_void_p)),
    # operations
    "ggml_add": (_T, (_C, _T, _T)),
    "ggml_mul": (_T, (_C, _T, _T)),
    "ggml_scale": (_T, (_C, _T, c_float)),
    "ggml_cont": (_T, (_C, _T)),
    "ggml_cast": (_T, (_C, _T, c_int)),
    "ggml_reshape_4d": (_T, (_C, _T, c_int64, c_int64, c_int64, c_int64)),
    "ggml_permute": (_T, (_C, _T, c_int, c_int, c_int, c_int)),
    "ggml_mul_mat": (_T, (_C, _T, _T)),
    "ggml_prec_set_acc": (c_bool, (_T, c_int)),
    "ggml_prec_set_src": (c_bool, (_T, c_int, c_int)),
    "ggml_mul_mat_set_prec": (None, (_T, c_int)),
    "ggml_flash_attn_ext_set_prec": (None, (_T, c_int)),
    "ggml_conv_2d": (_T, (_C, _T, _T, *(c_int,) * 6)),
    "ggml_conv_2d_direct": (_T, (_C, _T, _T, *(c_int,) * 6)),
    "ggml_conv_2d_dw": (_T, (_C, _T, _T, *(c_int,) * 6)),
    "ggml_conv_2d_dw_direct": (_T, (_C, _T, _T, *(c_int,) * 6)),
    "ggml_conv_3d_direct": (_T, (_C, _T, _T, *(c_int,) * 12)),
    "ggml_conv_3d": (_T, (_C, _T, _T, c_int64, *(c_int,) * 9)),
    "ggml_im2col": (_T, (_C, _T, _T, *(c_int,) * 6, c_bool, c_int)),
    "ggml_pad": (_T, (_C, _T, *(c_int,) * 4)),
    "ggml_pad_ext": (_T, (_C, _T, *(c_int,) * 8)),
    "ggml_group_norm": (_T, (_C, _T, c_int, c_float)),
    "ggml_norm": (_T, (_C, _T, c_float)),
    "ggml_rms_norm": (_T, (_C, _T, c_float)),
    "ggml_silu": (_T, (_C, _T)),
    "ggml_gelu": (_T, (_C, _T)),
    "ggml_gelu_erf": (_T, (_C, _T)),
    "ggml_gelu_quick": (_T, (_C, _T)),
    "ggml_geglu_erf_swapped": (_T, (_C, _T)),
    "ggml_soft_max_ext": (_T, (_C, _T, _T, c_float, c_float)),
    "ggml_soft_max_add_sinks": (None, (_T, _T)),
    "ggml_flash_attn_ext_add_sinks": (None, (_T, _T)),
    "ggml_flash_attn_ext": (_T, (_C, _T, _T, _T, _T, c_float, c_float, c_float)),
    "ggml_timestep_embedding": (_T, (_C, _T, c_int, c_int)),
    "ggml_upscale": (_T, (_C, _T, c_int, c_int)),
    "ggml_l2_norm": (_T, (_C, _T, c_float)),
    "ggml_sigmoid": (_T, (_C, _T)),
    "ggml_tanh": (_T, (_C, _T)),
    "ggml_relu": (_T, (_C, _T)),
    "ggml_leaky_relu": (_T, (_C, _T, c_float, c_bool)),
    "ggml_swiglu": (_T, (_C, _T)),
    "ggml_swiglu_swapped": (_T, (_C, _T)),
    "ggml_swiglu_oai": (_T, (_C, _T, _T, c_float, c_float)),
    "ggml_rope_ext": (_T, (_C, _T, _T, _T, *(c_int,) * 3, *(c_float,) * 6)),
    "ggml_interpolate": (_T, (_C, _T, *(c_int64,) * 4, c_uint32)),
    "ggml_pool_2d": (_T, (_C, _T, *(c_int,) * 5, c_float, c_float)),
    "ggml_pad_ext_circular": (_T, (_C, _T, *(c_int,) * 8)),
    "ggml_roll": (_T, (_C, _T, *(c_int,) * 4)),
    "ggml_concat": (_T, (_C, _T, _T, c_int)),
    "ggml_get_rows": (_T, (_C, _T, _T)),
}


class Library:
    """The functions of a loaded libggml.

    place: a file (libggml.so, or a library that contains ggml) or the folder of libggml-base and libggml-cpu

    `library.ggml_add(...)` calls a function; `"ggml_add" in library` tests for it.
    Raises BadInput if `place` has no libggml.
    """

    def __init__(self, place: Path):
        self.files = library_files(place)
        try:
            self._handles = [ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL) for file in self.files]
        except OSError as error:
            raise BadInput(f"{place}: not a loadable libggml: {error}") from None
        if "ggml_init" not in self:
            raise BadInput(f"{place}: no ggml_init in it: expected a shared libggml, or the folder that holds one")

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def __getattr__(self, name: str):
        function = self._find(name)
        if function is None:
            raise AttributeError(f"this libggml has no {name}")
        setattr(self, name, function)
        return function

    def _find(self, name: str):
        if name not in _SIGNATURES:
            return None
        for handle in self._handles:
            if hasattr(handle, name):
                function = getattr(handle, name)
                function.restype, function.argtypes = _SIGNATURES[name]
                return function
        return None

    def lacks(self) -> list[str]:
        """Newer block types that this libggml lacks; never ask it for their size."""
        young = ("mxfp4", "nvfp4", "q1_0", "q2_0")
        return [t for t in young if not any(hasattr(h, f"dequantize_row_{t}") for h in self._handles)]

    def version(self, backend: str) -> str:
        """Return ggml's version string and the hash of the file with a backend's kernels. backend: as in Device"""
        version = self.ggml_version().decode(errors="replace") if "ggml_version" in self else "unknown"
        folder, part = self.files[0].parent, f"ggml-{backend.lower()}"
        loaded = (file for file in self.files if part in file.name)
        file = next(loaded, None) or _part(folder, part) or self.files[-1]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        return printable(f"{version} ({file.name} sha256:{digest})", 120)


def library_files(place: Path) -> list[Path]:
    """List the files to load, in order: the parts of ggml next to `place`, or `place` itself if there are none.

    Raises BadInput if no such file exists.
    """
    if not place.exists():
        raise BadInput(f"{place}: no such file or folder: expected a shared libggml")
    folder = place if place.is_dir() else place.parent
    parts = [file for file in (_part(folder, name) for name in _PARTS) if file is not None]
    if parts:
        return parts
    if place.is_dir():
        raise BadInput(f"{place}: no libggml-base, libggml-cpu or libggml in this folder")
    return [place]


def _part(folder: Path, name: str) -> Path | None:
    for pattern in (f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll", f"lib{name}.so.*", f"lib{name}.*.so"):
        found = sorted(folder.glob(pattern))
        if found:
            return found[0].resolve()
    return None
