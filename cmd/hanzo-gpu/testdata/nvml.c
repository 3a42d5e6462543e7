// A stand-in for libnvidia-ml.so.1 in tests: two GPUs, the second without memory of
// its own, and what is asked for in FAULT. Constants are those of NVIDIA's nvml.h.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };

static int fault(const char *name) {
	const char *asked = getenv("FAULT");
	return asked && !strcmp(asked, name);
}

// Handles: 1 and 2 are GPUs, 3 a MIG instance of the first.
typedef void *device;
static long of(device d) { return (long)d; }

int nvmlInit_v2(void) {
	if (fault("crash"))
		abort();
	if (fault("hang"))
		pause();
	return fault("unloaded") ? DRIVER_NOT_LOADED : SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Some Error"; }

int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "570.86.15", n); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 12080; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) { *d = (device)(i + 1L); return SUCCESS; }

int nvmlDeviceGetName(device d, char *s, unsigned n) {
	strncpy(s, of(d) == 2 ? "NVIDIA GB10" : of(d) == 3 ? "NVIDIA H100 80GB HBM3 MIG 1g.10gb" : "NVIDIA H100 80GB HBM3", n);
	return SUCCESS;
}
int nvmlDeviceGetUUID(device d, char *s, unsigned n) {
	strncpy(s, of(d) == 2 ? "GPU-2" : of(d) == 3 ? "MIG-3" : "GPU-1", n);
	return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
	*major = of(d) == 2 ? 12 : 9;
	*minor = of(d) == 2 ? 1 : 0;
	return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device d, struct memory *m) {
	if (of(d) == 2)
		return NOT_SUPPORTED;
	m->total = of(d) == 3 ? 9856ULL << 20 : (81559ULL << 20) + 4096;
	return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, struct process *all) {
	if (of(d) != 1) {
		*n = 0;
		return SUCCESS;
	}
	if (*n < 2) {
		*n = 2;
		return INSUFFICIENT_SIZE;
	}
	*n = 2;
	all[0] = (struct process){41, 1ULL << 30, 0, 0};
	all[1] = (struct process){42, ~0ULL, 0, 0}; // not available
	return SUCCESS;
}

// A driver before 450 has none of these.
#ifndef OLD
int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *next) {
	*now = *next = of(d) == 1 && fault("mig");
	return of(d) == 1 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *n) { *n = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned i, device *out) {
	*out = (device)3L;
	return i == 2 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(device d, unsigned *id) { *id = 9; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(device d, unsigned *id) { *id = 0; return SUCCESS; }
#endif
