// Loaded before user-mode Linux (LD_PRELOAD), so that it runs on processors with large registers.
//
// Its kernel keeps 2,696 bytes of a program's vector registers. A host with larger ones (AMX) refuses to set a part of them:
// EFAULT, and every program of that kernel dies at its start. So a part is completed with what the program has in the rest.
#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

long ptrace(enum __ptrace_request request, ...) {
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        static __thread char whole[65536] __attribute__((aligned(64)));
        struct iovec *part = data, all = {whole, sizeof whole};
        if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) == 0 && part->iov_len < all.iov_len) {
            memcpy(whole, part->iov_base, part->iov_len);
            return syscall(SYS_ptrace, request, pid, address, &all);
        }
    }
    // As the C library does: what is peeked is the result.
    if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) {
        long word;
        return syscall(SYS_ptrace, request, pid, address, &word) < 0 ? -1 : word;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
