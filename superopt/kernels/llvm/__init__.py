"""The toolchain: LLVM text, the processor that it is for, machine code kept on disk."""
