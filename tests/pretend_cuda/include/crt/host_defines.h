/* In place of the one that comes with nvcc and not with torch's wheels: what gcc needs of it. */
#pragma once
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __specialization_static
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
