/* Stands in for cuBLAS: handles are numbers, products are not computed. */
typedef int status;
#define WELL(name) status name(void) { return 0; }
#define MAKES(name) status name(void **made) { *made = (void *)0x100; return 0; }
#define IS_ZERO(name) status name(void *of, int *told) { *told = 0; return 0; }
MAKES(cublasCreate_v2)
MAKES(cublasLtCreate)
MAKES(cublasLtMatmulDescCreate)
MAKES(cublasLtMatmulPreferenceCreate)
MAKES(cublasLtMatrixLayoutCreate)
IS_ZERO(cublasGetMathMode)
IS_ZERO(cublasGetPointerMode_v2)
WELL(cublasDestroy_v2)
WELL(cublasSetStream_v2)
WELL(cublasSetWorkspace_v2)
WELL(cublasSetMathMode)
WELL(cublasSetPointerMode_v2)
WELL(cublasSgemm_v2)
WELL(cublasDgemm_v2)
WELL(cublasSgemmEx)
WELL(cublasGemmEx)
WELL(cublasGemmStridedBatchedEx)
WELL(cublasSgemmStridedBatched)
WELL(cublasSgemv_v2)
WELL(cublasSdot_v2)
WELL(cublasDotEx)
WELL(cublasLtDestroy)
WELL(cublasLtMatmul)
WELL(cublasLtMatmulDescDestroy)
WELL(cublasLtMatmulDescSetAttribute)
WELL(cublasLtMatmulPreferenceDestroy)
WELL(cublasLtMatmulPreferenceSetAttribute)
WELL(cublasLtMatrixLayoutDestroy)
WELL(cublasLtMatrixLayoutSetAttribute)
status cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, void *found, int *count) {
    *count = 1;
    return 0;
}
