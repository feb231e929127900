/* Stands in for the CUDA runtime: GPUs of 8 GB whose memory is this machine's and whose kernels do
   nothing. $PRETEND_CUDA_GPUS tells how many there are; CUDA_VISIBLE_DEVICES chooses among them. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>

#include "pretend.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST 16
#define BLOCKS 65536

static __thread int current = 0; /* as with CUDA, a thread begins on the first device */
static int has_context[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The machine's number of each visible GPU; returns how many there are. */
static int visible(int numbers[MOST]) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES"), *all = getenv("PRETEND_CUDA_GPUS");
    int count = 0, existing = all ? atoi(all) : 0;
    if (!text) {
        for (; count < existing && count < MOST; count++) numbers[count] = count;
        return count;
    }
    while (*text && count < MOST) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= existing) break; /* as CUDA: the rest is hidden */
        numbers[count++] = (int)number;
        text = *end == ',' ? end + 1 : end;
    }
    return count;
}

static int machine_number(int device) {
    int numbers[MOST];
    return device < visible(numbers) ? numbers[device] : -1;
}

static void touch(void) {
    if (!__sync_lock_test_and_set(&has_context[current], 1)) note("context %d", machine_number(current));
}

static long launches; /* kernels, of all threads */
EXPORT void pretend_mark(const char *text) { note("launches %ld", launches); note("mark %s", text); }
EXPORT int pretend_has_context(int device) { return has_context[device]; }

/* Memory: found again by address, since torch asks what a pointer is. */
static struct block { char *start; size_t size; int device; enum cudaMemoryType type; } blocks[BLOCKS];
static int used;

static cudaError_t allocate(void **made, size_t size, enum cudaMemoryType type) {
    touch();
    if (posix_memalign(made, 4096, size + 1)) return cudaErrorMemoryAllocation;
    memset(*made, 0, size);
    pthread_mutex_lock(&lock);
    if (used == BLOCKS) abort();
    blocks[used++] = (struct block){*made, size, current, type};
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t release(void *start) {
    pthread_mutex_lock(&lock);
    for (int i = 0; start && i < used; i++)
        if (blocks[i].start == start) {
            blocks[i] = blocks[--used];
            free(start);
            break;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMalloc(void **made, size_t size) { return allocate(made, size, cudaMemoryTypeDevice); }
EXPORT cudaError_t cudaFree(void *start) { return release(start); }
EXPORT cudaError_t cudaHostAlloc(void **made, size_t size, unsigned flags) { return allocate(made, size, cudaMemoryTypeHost); }
EXPORT cudaError_t cudaFreeHost(void *start) { return release(start); }

static struct block find(const void *pointer) {
    struct block found = {0};
    found.device = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < used && !found.start; i++)
        if ((char *)pointer >= blocks[i].start && (char *)pointer < blocks[i].start + blocks[i].size)
            found = blocks[i];
    pthread_mutex_unlock(&lock);
    return found;
}

EXPORT int pretend_knows(const void *pointer) { return find(pointer).start != NULL; }
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *told, const void *pointer) {
    struct block found = find(pointer);
    memset(told, 0, sizeof *told);
    told->device = found.device;
    if (found.start) {
        told->type = found.type;
        told->devicePointer = (void *)pointer;
        told->hostPointer = found.type == cudaMemoryTypeHost ? (void *)pointer : NULL;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemGetInfo(size_t *unused, size_t *all) {
    *unused = (size_t)6 << 30, *all = (size_t)8 << 30;
    return cudaSuccess;
}

/* No kernel computes what `item()` reads back, into pinned memory: a number is 0 and a truth value
   is true, so that a program takes the path of a run that is well. */
static cudaError_t copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    int single = size == 1 || size == 4 || size == 8;
    memmove(to, from, size);
    if (kind == cudaMemcpyDeviceToHost && single && find(to).type == cudaMemoryTypeHost)
        memset(to, size == 1, size);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, size, kind);
}
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    note("wait cudaMemcpy");
    return copy(to, from, size, kind);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, cudaStream_t stream) {
    memmove(to, from, size);
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void *to, int value, size_t size) { memset(to, value, size); return cudaSuccess; }
EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) { memset(to, value, size); return cudaSuccess; }

/* Devices */
EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    int numbers[MOST];
    *count = visible(numbers);
    return *count ? cudaSuccess : cudaErrorNoDevice;
}
EXPORT cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
EXPORT cudaError_t cudaSetDevice(int device) {
    if (device < 0 || machine_number(device) < 0) return cudaErrorInvalidDevice;
    current = device;
    touch();
    return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
EXPORT cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *told, int device) {
    memset(told, 0, sizeof *told);
    snprintf(told->name, sizeof told->name, "Pretend GPU");
    told->uuid.bytes[0] = (char)(machine_number(device) + 1);
    told->major = 9, told->warpSize = 32, told->multiProcessorCount = 132;
    told->totalGlobalMem = (size_t)8 << 30;
    told->maxThreadsPerBlock = 1024, told->maxThreadsPerMultiProcessor = 2048;
    told->maxThreadsDim[0] = told->maxThreadsDim[1] = 1024, told->maxThreadsDim[2] = 64;
    told->maxGridSize[0] = 2147483647, told->maxGridSize[1] = told->maxGridSize[2] = 65535;
    told->sharedMemPerBlock = 49152, told->sharedMemPerBlockOptin = 232448;
    told->sharedMemPerMultiprocessor = 233472, told->l2CacheSize = 50 << 20;
    told->regsPerBlock = told->regsPerMultiprocessor = 65536, told->textureAlignment = 512;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp told;
    cudaGetDeviceProperties(&told, device);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = told.maxThreadsPerBlock; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = told.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrMultiProcessorCount: *value = told.multiProcessorCount; break;
        case cudaDevAttrComputeCapabilityMajor: *value = told.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        case cudaDevAttrWarpSize: *value = told.warpSize; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)told.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)told.sharedMemPerBlockOptin; break;
        default: *value = 1;
    }
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0, *most = -5; return cudaSuccess; }
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) { *can = 1; return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, size, "0000:%02x:00.0", machine_number(device) + 1);
    return cudaSuccess;
}

/* Streams and events are numbers; everything is done when it is asked for. */
static long last_handle = 0x1000;
#define HANDLE(kind) ((kind)__sync_add_and_fetch(&last_handle, 16))
EXPORT cudaError_t cudaStreamCreate(cudaStream_t *made) { touch(); *made = HANDLE(cudaStream_t); return cudaSuccess; }
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) { return cudaStreamCreate(made); }
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority) { return cudaStreamCreate(made); }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *told) {
    *told = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *told, unsigned long long *id,
    cudaGraph_t *graph, const cudaGraphNode_t **needed, const cudaGraphEdgeData **edges, size_t *count) {
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *told, unsigned long long *id,
    cudaGraph_t *graph, const cudaGraphNode_t **needed, size_t *count) {
#endif
    *told = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (count) *count = 0;
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) { touch(); *made = HANDLE(cudaEvent_t); return cudaSuccess; }
EXPORT cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }
EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) { *milliseconds = 1; return cudaSuccess; }
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) { function(data); return cudaSuccess; }

EXPORT cudaError_t cudaDeviceSynchronize(void) { note("wait device"); return cudaSuccess; }
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) { note("wait stream"); return cudaSuccess; }
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) { note("wait event"); return cudaSuccess; }

/* Kernels, and what needs no answer */
EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *told, const void *function) {
    memset(told, 0, sizeof *told);
    told->maxThreadsPerBlock = 1024, told->numRegs = 32, told->binaryVersion = told->ptxVersion = 90;
    return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *f, int size, size_t shared) { *count = 2; return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *f, int size, size_t shared, unsigned flags) { *count = 2; return cudaSuccess; }
EXPORT cudaError_t cudaGetSymbolAddress(void **found, const void *symbol) { static char memory[1 << 16]; *found = memory; return cudaSuccess; }
static int nothing(void) { return 0; }
#if CUDART_VERSION >= 13000
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *told) {
#else
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags, enum cudaDriverEntryPointQueryResult *told) {
#endif
    *found = (void *)nothing;
    if (told) *told = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#define WELL(name, ...) EXPORT cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
WELL(cudaGetLastError, void)
WELL(cudaPeekAtLastError, void)
WELL(cudaDeviceEnablePeerAccess, int device, unsigned flags)
WELL(cudaHostRegister, void *start, size_t size, unsigned flags)
WELL(cudaHostUnregister, void *start)
WELL(cudaMemcpyToSymbol, const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind)
WELL(cudaStreamDestroy, cudaStream_t stream)
WELL(cudaStreamQuery, cudaStream_t stream)
WELL(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)
WELL(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
WELL(cudaEventDestroy, cudaEvent_t event)
WELL(cudaEventQuery, cudaEvent_t event)
WELL(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
WELL(cudaEventRecordWithFlags, cudaEvent_t event, cudaStream_t stream, unsigned flags)
WELL(cudaFuncSetAttribute, const void *function, enum cudaFuncAttribute attribute, int value)
#define LAUNCHED(name, ...) EXPORT cudaError_t name(__VA_ARGS__) { __sync_add_and_fetch(&launches, 1); return cudaSuccess; }
LAUNCHED(cudaLaunchKernel, const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
LAUNCHED(__cudaLaunchKernel, const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
LAUNCHED(cudaLaunchKernelExC, const cudaLaunchConfig_t *config, const void *f, void **arguments)
LAUNCHED(cudaLaunchCooperativeKernel, const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
