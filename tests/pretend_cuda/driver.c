/* Stands in for libcuda.so.1: torch asks it whether a device has a context, Triton loads and starts
   its compiled kernels with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "pretend.h"

typedef unsigned long long pointer;
enum { DEVICE_POINTER = 3 };

static void *of_runtime(const char *name) { return dlsym(RTLD_DEFAULT, name); }

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "pretended"; return 0; }

int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 0; return 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuPointerGetAttribute(void *told, int attribute, pointer of) { /* 1: not memory of a GPU's */
    int (*is_known)(pointer) = (int (*)(pointer))of_runtime("pretend_knows");
    if (attribute != DEVICE_POINTER || !is_known || !is_known(of)) return 1;
    *(pointer *)told = of;
    return 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    int (*has_context)(int) = (int (*)(int))of_runtime("pretend_has_context");
    *flags = 0;
    *active = has_context ? has_context(device) : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return cuCtxGetCurrent(context); }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { /* numbered as the runtime's */
    int (*get)(int *, int, int) = (int (*)(int *, int, int))of_runtime("cudaDeviceGetAttribute");
    return get ? get(value, attribute, device) : 1;
}

int cuModuleLoad(void **made, const char *path) { *made = (void *)0x200; return 0; }
int cuModuleLoadData(void **made, const void *image) { *made = (void *)0x200; return 0; }
int cuModuleGetFunction(void **made, void *module, const char *name) { *made = (void *)0x300; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *of) { *value = attribute == 0 ? 1024 : 0; return 0; }
int cuFuncSetAttribute(void *of, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *of, int config) { return 0; }
int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) { return 0; }
int cuLaunchKernelEx(const void *config, void *kernel, void **arguments, void **extra) { return 0; }
