/* Shared by the parts of the pretend CUDA: one log file for each process.

   $PRETEND_CUDA_LOG.<pid> holds one event a line:
     context <gpu>               the process touched this GPU of the machine for the first time
     wait <what>                 the program waited for the GPU
     nccl <what> <count> <type>  a call of NCCL's, in order
     launches <count>            before a mark: kernels that this process has launched so far
     mark <text>                 what the test itself notes */
#pragma once
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(const char *format, ...) {
    static int file = -1, owner = 0; /* a forked process has a file of its own */
    char text[512];
    va_list values;
    const char *path = getenv("PRETEND_CUDA_LOG");
    if (!path) return;
    if (owner != getpid()) {
        snprintf(text, sizeof text, "%s.%d", path, getpid());
        file = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        owner = getpid();
    }
    va_start(values, format);
    int length = vsnprintf(text, sizeof text - 1, format, values);
    va_end(values);
    text[length] = '\n';
    if (write(file, text, length + 1) < 0) abort();
}
