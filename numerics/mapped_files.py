"""End a program in one line when another one cuts short a file that it has mapped.

The system then sends SIGBUS at the next read behind the new end, from whichever thread, and a handler in Python
would run too late. The handler here is machine code of a few instructions: it finds the file by the address, writes
the line, and ends the process. On Linux; elsewhere, and for other addresses, SIGBUS ends the program as before.
"""

import ctypes
import functools
import itertools
import mmap
import signal
import sys
from pathlib import Path

from refsd.numerics.printable import printable

BAD_INPUT = 2  # exit code
_MOST = 8192  # mapped files, the last ones


class _File(ctypes.Structure):
    """A mapped file: its first address, the one behind its last, the line about it and its length."""

    _fields_ = [
        ("start", ctypes.c_uint64),
        ("stop", ctypes.c_uint64),
        ("line", ctypes.c_char_p),
        ("length", ctypes.c_uint64),
    ]


class _Action(ctypes.Structure):
    """struct sigaction of Linux."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


_SIGINFO = 4  # a flag of sigaction: the handler gets the address
_SI_ADDR = 16  # offset of the address in siginfo_t
_FILES = (_File * _MOST)()
_COUNT = ctypes.c_uint64(0)
_ENDING = ctypes.c_uint64(0)  # 1 after the first thread has met the end of a file
_PLACES = itertools.count()


def arm() -> None:
    """End this process in one line from now on, where a mapped file that `note` knows has been cut short."""
    global _armed
    _armed = sys.platform == "linux"


_armed = False


def note(path: Path, content: mmap.mmap) -> None:
    """Remember which file a mapping is of, if this process is armed."""
    if not _armed or not len(content):
        return
    import numpy as np

    _install()
    at = np.frombuffer(content, np.uint8).ctypes.data
    text = f"{path}: another program cut the file short while it was read; run the command again once it is whole"
    line = f"refsd: {printable(text)}\n".encode(errors="replace")
    _FILES[next(_PLACES) % _MOST] = _File(at, at + len(content), line, len(line))
    _COUNT.value = min(_COUNT.value + 1, _MOST)


@functools.cache
def _install() -> object:
    """Compile the handler and install it. -> what must live as long as the process"""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(str(_handler()))
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    action = _Action(engine.get_function_address("handler"), flags=_SIGINFO)
    ctypes.CDLL(None).sigaction(int(signal.SIGBUS), ctypes.byref(action), None)
    return engine


def _handler():
    """Build the handler, which calls nothing but pause, write, _exit and signal.

    void handler(int sig, siginfo_t *info, void *context)
    {
        for (i = count; i--;)  // the latest first: a later mapping may have taken the place of one that has ended
            if (files[i].start <= info->si_addr && info->si_addr < files[i].stop) {
                while (atomic_exchange(&ending, 1)) pause();  // one thread writes
                write(2, files[i].line, files[i].length);
                _exit(2);
            }
        signal(sig, SIG_DFL);
    }
    """
    from llvmlite import ir

    word, number, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
    module = ir.Module()
    handler = ir.Function(module, ir.FunctionType(ir.VoidType(), [number, byte, byte]), "handler")
    write = ir.Function(module, ir.FunctionType(word, [number, word, word]), "write")
    end = ir.Function(module, ir.FunctionType(ir.VoidType(), [number]), "_exit")
    restore = ir.Function(module, ir.FunctionType(word, [number, word]), "signal")
    pause = ir.Function(module, ir.FunctionType(number, []), "pause")
    start, test, compare, found, wait, say, other = (handler.append_basic_block() for _ in range(7))
    build = ir.IRBuilder(start)

    def load(address):
        return build.load(build.inttoptr(address, word.as_pointer()))

    signal_number, info, _ = handler.args
    address = load(build.add(build.ptrtoint(info, word), word(_SI_ADDR)))
    count = load(word(ctypes.addressof(_COUNT)))
    build.branch(test)
    build.position_at_end(test)
    n = build.phi(word)
    build.cbranch(build.icmp_unsigned("==", n, word(0)), other, compare)
    build.position_at_end(compare)
    i = build.sub(n, word(1))
    n.add_incoming(count, start)
    n.add_incoming(i, compare)
    file = build.add(word(ctypes.addressof(_FILES)), build.mul(i, word(ctypes.sizeof(_File))))
    fields = [load(build.add(file, word(getattr(_File, name).offset))) for name, *_ in _File._fields_]
    above, below = (build.icmp_unsigned(sign, address, of) for sign, of in zip((">=", "<"), fields, strict=False))
    build.cbranch(build.and_(above, below), found, test)
    build.position_at_end(found)
    ending = build.inttoptr(word(ctypes.addressof(_ENDING)), word.as_pointer())
    was = build.atomic_rmw("xchg", ending, word(1), "seq_cst")
    build.cbranch(build.icmp_unsigned("==", was, word(0)), say, wait)
    build.position_at_end(wait)
    build.call(pause, [])
    build.branch(found)
    build.position_at_end(say)
    build.call(write, [number(2), fields[2], fields[3]])
    build.call(end, [number(BAD_INPUT)])
    build.unreachable()
    build.position_at_end(other)
    build.call(restore, [signal_number, word(0)])
    build.ret_void()
    return module
