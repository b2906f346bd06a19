"""The compiler back end: LLVM IR as text, the target processor, machine code cached on disk."""
